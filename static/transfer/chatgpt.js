/**
 * ChatGPT's `conversations.json`: chats whose `mapping` is a tree of nodes, most with a message; `current_node` is the
 * leaf that was shown. Times are seconds. Much in it was never on screen: system nodes, calls of tools, thoughts.
 */

import { isObject, wordsOf } from "./records.js";

const SPOKEN = new Set(["text", "multimodal_text"]);
/** Marks of sources, set between signs of Unicode's private area. */
const CITATION = /\ue200[^\ue201]*\ue201/g;

export const chatgpt = {
  recognises: ({ mapping }) => isObject(mapping),

  draft(chat) {
    const { title, mapping, create_time: created, update_time: updated, current_node: head } = chat;
    const id = chat.conversation_id ?? chat.id;
    const system = { text: "" };
    let leftOut = 0;
    const nodes = Object.entries(mapping).map(([key, node]) => {
      const { role, text } = spoken(node?.message, system);
      leftOut += role === null ? Number(isSaid(node?.message)) : picturesIn(node.message);
      return { id: key, parent: node?.parent, role, text, created: ms(node?.message?.create_time) };
    });
    const source = `chatgpt:${id ?? `${created}:${title}`}`;
    return { source, title, created: ms(created), updated: ms(updated), system: system.text, head, nodes, leftOut };
  },
};

function ms(seconds) {
  return typeof seconds === "number" ? seconds * 1000 : null;
}

function spoken(message, system) {
  const role = message?.author?.role;
  const text = textOf(message?.content);
  const isHidden = message?.metadata?.is_visually_hidden_from_conversation === true;
  if (!text || isHidden) return { role: null, text: "" };
  if (role === "system") system.text ||= text;
  // What an assistant says to a tool is not said to the reader.
  const isTurn = role === "user" || (role === "assistant" && (message.recipient ?? "all") === "all");
  return isTurn ? { role, text } : { role: null, text: "" };
}

/** Whether a message that is left out was one. */
function isSaid(message) {
  return ["user", "assistant", "tool"].includes(message?.author?.role);
}

function picturesIn({ content }) {
  return content.parts.filter((part) => isObject(part) && !part.text).length;
}

/** Pictures and files among the parts are objects; some hold what was said aloud. */
function textOf(content) {
  if (!SPOKEN.has(content?.content_type ?? "text") || !Array.isArray(content?.parts)) return "";
  const parts = content.parts.map((part) => wordsOf(isObject(part) ? part.text : part));
  return parts.filter(Boolean).join("\n\n").replace(CITATION, "").trim();
}
