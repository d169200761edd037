/**
 * A conversation as Markdown: the branch that is shown, under headings that say who speaks. What was said is left as
 * it is; where an answer was cut in the middle of code, the fence is closed, so that it ends there.
 */

import { pathTo } from "../model/tree.js";
import { text as say } from "../texts.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})(.*)$/;

/** @param entries [{conversation, messages}] @yields pieces of a text */
export function* inMarkdown(entries) {
  let rule = "";
  for (const { conversation, messages } of entries) {
    yield `${rule}# ${inLine(conversation.title)}\n`;
    if (conversation.setup?.system) yield turn(say("transfer.system"), conversation.setup.system);
    for (const message of pathTo(conversation.head, new Map(messages.map((each) => [each.id, each])))) {
      if (message.text) yield turn(say(message.role === "user" ? "question.you" : "answer.answer"), message.text);
    }
    rule = "\n---\n\n";
  }
}

function turn(who, text) {
  return `\n## ${who}\n\n${closed(text.trimEnd())}\n`;
}

/** A title as one line in which nothing has a meaning. */
function inLine(title) {
  return title.replace(/\s+/g, " ").trim().replace(/[\\`*_[\]<>#]/g, "\\$&");
}

/** A text whose last block of code ends with it. */
function closed(text) {
  let open = null;
  for (const line of text.split("\n")) {
    const [, fence, rest] = FENCE.exec(line) ?? [];
    if (!fence) continue;
    if (open === null) open = fence[0] === "`" && rest.includes("`") ? null : fence;
    else if (fence.startsWith(open) && rest.trim() === "") open = null;
  }
  return open === null ? text : `${text}\n${open}`;
}
