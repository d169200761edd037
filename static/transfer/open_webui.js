/**
 * Open WebUI's export: a list of chats, each {id, title, chat, ...}, or in older ones the inner `chat` alone. It holds
 * a tree by ids under `history`, whose `currentId` is the leaf that was shown; the oldest only a list of `messages`.
 * Times are seconds, in `chat.timestamp` milliseconds.
 */

import { isObject, leftOutOf, wordsOf } from "./records.js";

const ROLES = new Set(["user", "assistant"]);
const THOUGHTS = /<details type="reasoning"[\s\S]*?<\/details>/g;

export const openWebui = {
  recognises(entry) {
    const chat = entry.chat ?? entry;
    return isObject(chat.history?.messages) || (isObject(entry.chat) && Array.isArray(chat.messages));
  },

  draft(entry) {
    const chat = entry.chat ?? entry;
    const { history } = chat;
    const listed = isObject(history?.messages) ? Object.values(history.messages) : inLine(chat.messages);
    const said = listed.filter(isObject);
    const nodes = said.map(nodeOf);
    const created = ms(entry.created_at) ?? ms(chat.timestamp);
    return {
      source: `open-webui:${entry.id ?? `${created}:${chat.title}`}`,
      title: entry.title ?? chat.title,
      created,
      updated: ms(entry.updated_at),
      pinned: entry.pinned,
      system: wordsOf(chat.system ?? chat.params?.system).trim() || systemOf(said),
      head: history?.currentId,
      nodes,
      leftOut: leftOutOf(said, nodes, ({ files }) => files),
    };
  },
};

/** Seconds; where they would be far in the future, they are milliseconds already. */
function ms(time) {
  if (typeof time !== "number") return null;
  return time > 1e11 ? time : time * 1000;
}

function nodeOf({ id, parentId, role, content, timestamp }) {
  const text = textOf(content);
  return { id, parent: parentId, role: ROLES.has(role) && text ? role : null, text, created: ms(timestamp) };
}

function textOf(content) {
  const parts = Array.isArray(content) ? content.map((part) => wordsOf(part?.text)) : [wordsOf(content)];
  return parts.filter(Boolean).join("\n\n").replace(THOUGHTS, "").trim();
}

function systemOf(messages) {
  return textOf(messages.find(({ role }) => role === "system")?.content);
}

/** Messages that only stand one after the other, as a tree. */
function inLine(messages) {
  return messages.map((message, i) => isObject(message) && { ...message, id: i, parentId: i - 1 });
}
