/**
 * What a foreign chat becomes here: a conversation, and a tree of questions and answers.
 *
 * Every format makes the same draft of it, which knows nodes as they stood there, by their own ids:
 *
 *     draft   {source, alias, title, created, updated, pinned, system, setup, head, nodes, leftOut}
 *     node    {id, parent, role, text, created, status, error, stats}
 *
 * `source` names the chat in its old home, so that it is recognised when it comes again; `alias` is another name. A
 * node with the role null was left out, and only holds what hangs on it; `leftOut` is how many such there were that
 * said something, and how many pictures and files. All fields but `nodes` may be missing. Records are made field by
 * field: nothing else of a file gets into the store.
 */

import { newId } from "../model/store.js";
import { FIRST_SETUP } from "../model/setup.js";
import { Status } from "../tickwire.js";

/** A tree of more than that would make the page slow. */
export const MOST_MESSAGES = 10_000;
const TITLE_LENGTH = 200;
const LATEST = 8.64e15;

/** @returns {{conversation, messages}}; null: nothing is said in it */
export function recordsOf(draft) {
  const kept = inTurns(standing(draft.nodes));
  if (!kept.length) return null;
  const id = newId();
  const ids = new Map(kept.map((node) => [node.id, newId()]));
  const now = Date.now();
  const messages = kept.map((node) => messageOf(node, { id, ids, now }));
  const conversation = {
    id,
    title: titleOf(draft, messages),
    created: timeOf(draft.created) ?? messages[0].created,
    updated: timeOf(draft.updated) ?? Math.max(...messages.map(({ created }) => created)),
    head: ids.get(headOf(draft.head, draft.nodes, kept)),
    pinned: draft.pinned === true,
    setup: draft.setup ?? { ...FIRST_SETUP, system: wordsOf(draft.system) },
    source: draft.source,
  };
  return { conversation, messages };
}

export function isObject(value) {
  return typeof value === "object" && value !== null;
}

/** A text as it may be kept: a string, and one that can be sent. */
export function wordsOf(text) {
  return typeof text === "string" ? text.toWellFormed() : "";
}

/** Milliseconds since 1970; null: there is no such time. */
export function timeOf(time) {
  return typeof time === "number" && time > 0 && time < LATEST ? Math.round(time) : null;
}

/** `leftOut` of a draft, from messages and their nodes; `filesOf` gives what hangs on a message besides its text. */
export function leftOutOf(messages, nodes, filesOf) {
  const counts = messages.map((message, i) => {
    const files = filesOf(message);
    if (nodes[i].role) return Array.isArray(files) ? files.length : 0;
    return message.role === "system" ? 0 : 1;
  });
  return counts.reduce((sum, count) => sum + count, 0);
}

function messageOf(node, { id, ids, now }) {
  const { role, text } = node;
  const message = { id: ids.get(node.id), conversation: id, parent: ids.get(node.parent) ?? null, role, text };
  message.created = timeOf(node.created) ?? now;
  if (role === "user") return message;
  const { status = Status.COMPLETED, error = null, stats = null } = node;
  return { ...message, status, error, stats };
}

function titleOf({ title }, messages) {
  const line = wordsOf(title).trim() || messages.find(({ text }) => text.trim())?.text.trim() || "…";
  return Array.from(line.split("\n", 1)[0]).slice(0, TITLE_LENGTH).join("");
}

/** null, above all, is none: it is what has nothing above it that names it. */
function isId(id) {
  return typeof id === "string" || typeof id === "number";
}

/** The nodes that stay, parents first, each with the nearest one above it that stays for its parent. */
function standing(nodes) {
  const known = new Map();
  for (const node of nodes) if (isId(node.id) && !known.has(node.id)) known.set(node.id, node);
  const children = Map.groupBy(known.values(), ({ parent }) => (known.has(parent) ? parent : null));
  const inOrder = [];
  // What cannot be reached from a root goes round in circles, and is nowhere to be shown.
  const open = (children.get(null) ?? []).map((node) => ({ node, parent: null }));
  for (let i = 0; i < open.length; i++) {
    const { node, parent } = open[i];
    if (node.role) inOrder.push({ ...node, parent });
    const above = node.role ? node.id : parent;
    for (const child of children.get(node.id) ?? []) open.push({ node: child, parent: above });
  }
  return inOrder;
}

/**
 * Makes one answer of those that follow each other, as around the use of a tool. Where they branch, each branch gets
 * the whole of it. An answer then always has a question above it, or nothing.
 */
function inTurns(nodes) {
  const known = new Map(nodes.map((node) => [node.id, node]));
  const goesOn = new Set();
  const isAnswered = new Set();
  for (const { parent, role } of nodes) (role === "assistant" ? goesOn : isAnswered).add(parent);
  for (const node of nodes) {
    const above = known.get(node.parent);
    if (node.role !== "assistant" || above?.role !== "assistant") continue;
    node.text = [above.text, node.text].filter(Boolean).join("\n\n");
    node.parent = above.parent;
  }
  return nodes.filter(({ id, role }) => role === "user" || !goesOn.has(id) || isAnswered.has(id));
}

/** The leaf that was shown, or the newest one. */
function headOf(head, nodes, kept) {
  const known = new Map(nodes.map((node) => [node.id, node]));
  const staying = new Map(kept.map((node) => [node.id, node]));
  const seen = new Set();
  let at = head;
  while (known.has(at) && !staying.has(at) && !seen.has(at)) {
    seen.add(at);
    at = known.get(at).parent;
  }
  const children = Map.groupBy(kept, ({ parent }) => parent);
  let leaf = staying.get(at) ?? kept.at(-1);
  for (let below = children.get(leaf.id); below; below = children.get(leaf.id)) leaf = below.at(-1);
  return leaf.id;
}
