/**
 * What the web page of llama.cpp's server exports: {conv, messages}, one or a list of them, or in JSON Lines a record
 * of the type "session" and one of the type "message" for each of its messages. Messages are a tree under a root
 * without text; `currNode` is the leaf that was shown. In its oldest exports a chat was an object with a plain list.
 * Times are milliseconds. What a model thought is kept apart from what it said.
 */

import { isObject, leftOutOf, timeOf, wordsOf } from "./records.js";

const ROLES = new Set(["user", "assistant"]);

export const llamaCpp = {
  recognises({ conv, id, messages }) {
    return Array.isArray(messages) && (typeof conv?.id === "string" || /^conv-\d+$/.test(id));
  },

  draft(entry) {
    const conv = entry.conv ?? entry;
    const said = entry.messages.filter(isObject);
    const nodes = said.map((message, i) => nodeOf(message, entry.conv ? message.parent : (said[i - 1]?.id ?? null)));
    return {
      source: `llama.cpp:${conv.id}`,
      title: conv.name ?? conv.title,
      updated: timeOf(conv.lastModified),
      created: timeOf(Number(/^conv-(\d+)$/.exec(conv.id)?.[1])) ?? firstTime(said),
      pinned: conv.pinned,
      system: wordsOf(said.find(({ role, type, content }) => role === "system" && type !== "root" && content)?.content),
      head: conv.currNode,
      nodes,
      leftOut: leftOutOf(said, nodes, ({ extra }) => extra),
    };
  },
};

/** Puts records of JSON Lines together: what is not one passes as it is. */
export function* sessionsIn(entries) {
  let session = null;
  for (const entry of entries) {
    if (entry.broken) {
      yield entry;
      continue;
    }
    const { type, message, ...rest } = entry.value ?? {};
    if (session && type !== "message") {
      yield session;
      session = null;
    }
    if (type === "session") {
      session = { value: { conv: rest, messages: [] }, at: entry.at };
    } else if (type === "message" && session) {
      session.value.messages.push(message);
      session.at = entry.at;
    } else yield entry;
  }
  if (session) yield session;
}

function nodeOf({ id, role, type, content, timestamp }, parent) {
  const text = type === "root" ? "" : wordsOf(content).trim();
  const isTurn = ROLES.has(role) && text !== "";
  return { id, parent, role: isTurn ? role : null, text, created: timeOf(timestamp) };
}

function firstTime(messages) {
  return timeOf(Math.min(...messages.map(({ timestamp }) => timestamp ?? Infinity)));
}
