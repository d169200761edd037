/**
 * Finds words in conversations, whatever their case and accents: in titles, and in messages on all branches.
 *
 * Knows texts. It does not know where they are kept or who shows what was found. A hit is {conversation, message};
 * without a message, the title was hit. Work is done in slices, between which the page goes on.
 */

import { Slice } from "./slice.js";

const MARKS = /\p{Mn}/gu;
const ASCII = /^[\x00-\x7f]*$/;
const BEFORE = 40;
const AROUND = 180;

/** A text as it is compared: without accents, in lower case. */
export function fold(text) {
  return ASCII.test(text) ? text.toLowerCase() : text.normalize("NFKD").toLowerCase().replace(MARKS, "");
}

/** The words of a query; each must occur. */
export function wordsOf(query) {
  return fold(query).split(/\s+/u).filter(Boolean);
}

export class Search {
  /** [{conversation, title}], of which `title` is folded. */
  #titles;
  /** [{conversation, title, message, text}], the newest message first; `text` is folded when it is first looked at. */
  #messages = [];
  #turn = 0;

  constructor(conversations) {
    this.#titles = conversations.map((conversation) => ({ conversation, title: fold(conversation.title) }));
  }

  /** Takes in what there is besides titles: [{conversation, messages}]. */
  async add(entries) {
    const slice = new Slice();
    for (const { conversation, messages } of entries) {
      if (slice.isOver) await slice.next();
      const title = fold(conversation.title);
      for (const message of messages) this.#messages.push({ conversation, title, message, text: null });
    }
    await slice.next();
    this.#messages.sort((a, b) => b.message.created - a.message.created);
  }

  /**
   * Finds what has all the words: titles first, then messages whose text has at least one, and their title the rest;
   * in both, the newest first. Without words, all titles. The question that a title was made of is not found beside it.
   * @returns {Promise<object[] | null>} hits; null: another search has begun meanwhile
   */
  async find(query) {
    const turn = ++this.#turn;
    const words = wordsOf(query);
    const titles = this.#titles.filter(({ title }) => words.every((word) => title.includes(word)));
    titles.sort((a, b) => b.conversation.updated - a.conversation.updated);
    const found = titles.map(({ conversation }) => ({ conversation, message: null }));
    if (!words.length) return found;
    const named = new Set(titles.map(({ conversation }) => conversation.id));
    const slice = new Slice();
    for (const entry of this.#messages) {
      if (slice.isOver) {
        await slice.next();
        if (turn !== this.#turn) return null;
      }
      const { conversation, message } = entry;
      const isNew = !named.has(conversation.id) || !beginsWithTitle(conversation, message);
      if (isNew && matches(entry, words)) found.push({ conversation, message });
    }
    return found;
  }
}

/** Whether a message says first what its conversation is called. */
function beginsWithTitle({ title }, { parent, text }) {
  return parent === null && text.trimStart().startsWith(title.replace(/…$/u, ""));
}

function matches(entry, words) {
  entry.text ??= fold(entry.message.text);
  let inText = false;
  for (const word of words) {
    if (entry.text.includes(word)) inText = true;
    else if (!entry.title.includes(word)) return false;
  }
  return inText;
}

/** A text in pieces, [{text, found}], those with one of the words marked. */
export function marked(text, words) {
  return piecesOf(text, placesIn(text, words));
}

/** As `marked`, of the part of a long text around the first place that was found, in one line. */
export function snippet(text, words) {
  const line = text.replace(/\s+/gu, " ");
  const first = placesIn(line, words)[0]?.[0] ?? 0;
  const from = first > BEFORE ? line.indexOf(" ", first - BEFORE) + 1 : 0;
  const part = line.slice(Math.min(from, first)).slice(0, AROUND);
  return piecesOf(`${from ? "… " : ""}${part}`, placesIn(`${from ? "… " : ""}${part}`, words));
}

/** Where the words are, in order, as [from, to]; overlapping ones as one. */
function placesIn(text, words) {
  const { folded, at } = foldedWithPlaces(text);
  const places = [];
  for (const word of words) {
    for (let i = folded.indexOf(word); i >= 0; i = folded.indexOf(word, i + word.length)) {
      // One sign may have become several letters: it is found as a whole.
      let end = i + word.length;
      while (at[end] === at[end - 1]) end++;
      places.push([at[i], at[end] ?? text.length]);
    }
  }
  places.sort((a, b) => a[0] - b[0]);
  const apart = [];
  for (const [from, to] of places) {
    const last = apart.at(-1);
    if (last && from <= last[1]) last[1] = Math.max(last[1], to);
    else apart.push([from, to]);
  }
  return apart;
}

/** A folded text, and for each of its characters where in the text it comes from. */
function foldedWithPlaces(text) {
  if (ASCII.test(text)) return { folded: text.toLowerCase(), at: Array.from(text, (_, i) => i) };
  let folded = "";
  const at = [];
  let i = 0;
  for (const char of text) {
    const part = fold(char);
    for (let n = 0; n < part.length; n++) at.push(i);
    folded += part;
    i += char.length;
  }
  return { folded, at };
}

function piecesOf(text, places) {
  const pieces = [];
  let end = 0;
  for (const [from, to] of places) {
    if (from > end) pieces.push({ text: text.slice(end, from), found: false });
    pieces.push({ text: text.slice(from, to), found: true });
    end = to;
  }
  if (end < text.length) pieces.push({ text: text.slice(end), found: false });
  return pieces;
}
