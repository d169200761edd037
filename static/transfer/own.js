/**
 * Our own format, which docs/export.md describes: all of a conversation but what only this server could make use of.
 */

import { RUNNING } from "../model/message.js";
import { FIRST_SETUP } from "../model/setup.js";
import { NOTHING } from "../model/stats.js";
import { Status } from "../tickwire.js";
import { isObject, wordsOf } from "./records.js";

const FORMAT = "tickwire";
const VERSION = 1;
const ROLES = new Set(["user", "assistant"]);
const ENDED = Object.values(Status).filter((status) => !RUNNING.includes(status));
const NUMBERS = [
  "temperature",
  "top_p",
  "top_k",
  "min_p",
  "presence_penalty",
  "frequency_penalty",
  "repetition_penalty",
  "max_output_tokens",
  "seed",
];

/** @param entries [{conversation, messages}] @yields pieces of a text */
export function* written(entries) {
  const head = JSON.stringify({ format: FORMAT, version: VERSION, exported: new Date().toISOString() });
  yield `${head.slice(0, -1)},"conversations":[`;
  let comma = "";
  for (const entry of entries) {
    yield `${comma}\n${JSON.stringify(exported(entry))}`;
    comma = ",";
  }
  yield "\n]}\n";
}

function exported({ conversation, messages }) {
  const { id, title, created, updated, head, pinned = false, setup = FIRST_SETUP, source } = conversation;
  const inOrder = messages.toSorted((a, b) => a.created - b.created);
  return { id, title, created, updated, head, pinned, setup, source, messages: inOrder.map(exportedMessage) };
}

function exportedMessage({ id, parent, role, text, created, status, error, stats }) {
  return { id, parent, role, text, created, status, error, stats };
}

export const own = {
  recognises: ({ id, head, messages }) => typeof id === "string" && head !== undefined && Array.isArray(messages),

  draft({ id, title, created, updated, head, pinned, setup, source, messages }) {
    const nodes = messages.filter(isObject).map(nodeOf);
    const leftOut = nodes.filter(({ role }) => role === null).length;
    const alias = `tickwire:${id}`;
    const names = { source: wordsOf(source) || alias, alias };
    return { ...names, title, created, updated, head, pinned, setup: setupOf(setup), nodes, leftOut };
  },
};

function nodeOf({ id, parent, role, text, created, status, error, stats }) {
  const node = { id, parent, role: ROLES.has(role) ? role : null, text: wordsOf(text), created };
  if (role !== "assistant") return node;
  return { ...node, status: statusOf(status), error: errorOf(error), stats: statsOf(stats) };
}

/** What was running when it was exported ended there, for us. */
function statusOf(status) {
  return ENDED.includes(status) ? status : Status.INTERRUPTED;
}

function errorOf(error) {
  if (!isObject(error)) return null;
  return { code: wordsOf(error.code) || null, message: wordsOf(error.message) };
}

function statsOf(stats) {
  if (!isObject(stats)) return null;
  const names = Object.keys(NOTHING);
  return Object.fromEntries(names.map((name) => [name, Number.isFinite(stats[name]) ? stats[name] : null]));
}

function setupOf(setup) {
  const { model, system, sampling } = isObject(setup) ? setup : FIRST_SETUP;
  return { model: wordsOf(model) || null, system: wordsOf(system), sampling: samplingOf(sampling) };
}

function samplingOf(sampling) {
  if (!isObject(sampling)) return {};
  const chosen = NUMBERS.filter((name) => Object.hasOwn(sampling, name) && Number.isFinite(sampling[name]));
  const fields = Object.fromEntries(chosen.map((name) => [name, sampling[name]]));
  const { stop } = sampling;
  const stops = Array.isArray(stop) && stop.every((each) => typeof each === "string");
  return stops ? { ...fields, stop: [...stop] } : fields;
}
