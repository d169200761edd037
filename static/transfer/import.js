/**
 * Takes in the chats of a file, whichever of the known formats they have: the good ones, and tells of the others.
 *
 * Knows the formats. It does not know where chats are kept: it is told which are there, and gives records away.
 */

import { Slice } from "../model/slice.js";
import { chatgpt } from "./chatgpt.js";
import { entriesIn, isJson } from "./json.js";
import { llamaCpp, sessionsIn } from "./llama_cpp.js";
import { openWebui } from "./open_webui.js";
import { own } from "./own.js";
import { isObject, MOST_MESSAGES, recordsOf } from "./records.js";

const FORMATS = [own, chatgpt, openWebui, llamaCpp];
// What a browser can hold as one text.
const MOST_BYTES = 500_000_000;
const ADDED_AT_ONCE = 20;
const ZIP = [0x50, 0x4b, 0x03, 0x04];

/** A file in which there is nothing to take. `reason` is the end of the key of a text, `detail` what that is told. */
export class NotChats extends Error {
  constructor(reason, detail = null) {
    super(reason);
    this.reason = reason;
    this.detail = detail;
  }
}

/** Under what names the conversations that are here may come again. */
export function namesOf(conversations) {
  return new Set(conversations.flatMap(({ id, source }) => (source ? [`tickwire:${id}`, source] : [`tickwire:${id}`])));
}

/**
 * @param {File} file
 * @param {{here: Set<string>, add: Function, onprogress: Function, signal: AbortSignal}} to `here` from `namesOf`;
 *   `add` keeps [{conversation, messages}] and resolves when it has; `onprogress` is told which part has been read
 * @returns {Promise<{added, known, empty, tooLong, broken, foreign, leftOut}>} how many chats came in, were here
 *   already, had nothing in them or far too much, could not be read, and were none; and how many messages of those
 *   that came in had nothing to take
 * @throws {NotChats} nothing in it is a chat
 */
export async function importFile(file, { here, add, onprogress, signal }) {
  const text = await textOf(file);
  const result = { added: 0, known: 0, empty: 0, tooLong: 0, broken: 0, foreign: 0, leftOut: 0 };
  const slice = new Slice();
  let batch = [];
  let strange;
  const keep = async () => {
    await add(batch);
    result.added += batch.length;
    batch = [];
  };
  for (const { value, broken, at } of sessionsIn(entriesIn(text))) {
    const [fate, records] = broken ? ["broken"] : taken(value, here, result);
    if (fate) result[fate]++;
    if (fate === "foreign") strange ??= value;
    if (records) batch.push(records);
    if (batch.length === ADDED_AT_ONCE) await keep();
    if (slice.isOver) {
      onprogress(at / text.length);
      await slice.next();
    }
    if (signal.aborted) break;
  }
  await keep();
  if (!result.added && !result.known && !result.empty && !result.tooLong) refuse(result, strange);
  return result;
}

async function textOf(file) {
  if (file.size > MOST_BYTES) throw new NotChats("tooLarge");
  const start = new Uint8Array(await file.slice(0, ZIP.length).arrayBuffer());
  if (ZIP.every((byte, i) => byte === start[i])) throw new NotChats("zip");
  const text = await file.text();
  if (!isJson(text)) throw new NotChats("notJson");
  return text;
}

/** What becomes of one entry: why it does not come in, or its records. */
function taken(value, here, result) {
  const format = isObject(value) && FORMATS.find((each) => each.recognises(value));
  if (!format) return ["foreign"];
  const draft = format.draft(value);
  const names = [draft.source, draft.alias ?? draft.source];
  if (names.some((name) => here.has(name))) return ["known"];
  if (draft.nodes.length > MOST_MESSAGES) return ["tooLong"];
  const records = recordsOf(draft);
  if (!records) return ["empty"];
  for (const name of names) here.add(name);
  result.leftOut += draft.leftOut;
  return [null, records];
}

function refuse({ broken }, strange) {
  if (strange !== undefined) throw new NotChats("foreign", shapeOf(strange));
  throw new NotChats(broken ? "notJson" : "nothing");
}

/** What something is, for somebody who wonders why it is no chat: its first names, or its kind. */
function shapeOf(value) {
  if (!isObject(value)) return JSON.stringify(value).slice(0, 40);
  return Object.keys(value).slice(0, 5).join(", ").slice(0, 120);
}
