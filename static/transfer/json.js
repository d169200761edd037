/**
 * The chats in a JSON text, one by one: a file of 100 MB is never parsed as a whole, and of one that is broken off or
 * damaged, all that is good is found.
 *
 * Knows JSON's grammar as far as to see where values begin and end. It does not know what a chat is: entries are the
 * elements of a list, those under "conversations", a lone object, or, in JSON Lines, each line.
 */

// Each may look at all of the text that is left.
const MOST_MENDS = 100;
const SPACE = /[\s\ufeff]*/y;
const NEXT = /["[\]{}]/g;
const SCALAR = /[^\s,\]}]+/y;

/**
 * @param {string} text
 * @yields {{value: unknown, at: number} | {broken: true, at: number}} `at`: how far the text has been read
 */
export function* entriesIn(text) {
  const reader = new Reader(text);
  for (let mends = 0; ; ) {
    let isBroken = false;
    if (reader.isAtStart) {
      for (const entry of reader.next === "[" ? elements(reader) : members(reader)) {
        isBroken = entry.broken === true;
        yield entry;
      }
    }
    if (reader.isAtStart) continue;
    if (reader.isDone) return;
    if (!isBroken) yield { broken: true, at: reader.at };
    if (mends++ === MOST_MENDS) return;
    reader.mend();
  }
}

/** Whether a text can hold any. */
export function isJson(text) {
  return /^[\s\ufeff]*[[{]/.test(text);
}

function* elements(reader) {
  for (const source of reader.elements()) yield { ...parsed(source), at: reader.at };
}

function* members(reader) {
  const from = reader.at;
  let isList = false;
  for (const name of reader.members()) {
    if (name === "conversations" && reader.next === "[") {
      isList = true;
      yield* elements(reader);
    } else if (reader.value() === null) {
      break;
    }
  }
  if (!isList) yield { ...parsed(reader.since(from)), at: reader.at };
}

function parsed(source) {
  try {
    return { value: JSON.parse(source) };
  } catch {
    return { broken: true };
  }
}

class Reader {
  at = 0;
  /** Where the value began that was read last. */
  #last = 0;
  #isCut = false;
  #text;

  constructor(text) {
    this.#text = text;
    this.#skip(SPACE);
  }

  /** The sign that comes next; "": none. */
  get next() {
    return this.#text.charAt(this.at);
  }

  /** Whether a list or an object begins here. */
  get isAtStart() {
    return this.next === "[" || this.next === "{";
  }

  /** Whether all has been read, and nothing was broken off. */
  get isDone() {
    return this.next === "" && !this.#isCut;
  }

  /** Goes on behind what is broken, with the next line that begins as an object does. */
  mend() {
    const next = this.#text.indexOf("\n{", this.#last);
    this.at = next < 0 ? this.#text.length : next + 1;
    // Where nothing can be read there either, the next mend looks further on.
    this.#last = this.at;
    this.#isCut = false;
  }

  since(from) {
    return this.#text.slice(from, this.at);
  }

  /** The sources of a list's elements. Where it is broken off, the last one is empty. */
  *elements() {
    this.#sign("[");
    while (this.next !== "]") {
      const source = this.value();
      yield source ?? "";
      if (source === null) return;
      if (!this.#goesOn("]")) {
        if (this.next === "") yield "";
        return;
      }
    }
    this.#sign("]");
  }

  /** The names of an object's members; after each, its value is to be read. */
  *members() {
    this.#sign("{");
    while (this.next === '"') {
      yield parsed(this.value() ?? "").value;
      if (!this.#goesOn("}")) return;
    }
    this.#sign("}");
  }

  /** A value's source; null: it is broken off, and nothing is left. */
  value() {
    const from = this.at;
    this.#last = from;
    const end = this.#end();
    this.at = end ?? this.#text.length;
    const source = end === null || end === from ? null : this.since(from);
    if (source === null) {
      this.at = this.#text.length;
      this.#isCut = true;
    }
    this.#skip(SPACE);
    if (this.next === ":") this.#sign(":");
    return source;
  }

  #end() {
    if (this.next === '"') return this.#endOfString(this.at);
    if (this.next !== "[" && this.next !== "{") {
      SCALAR.lastIndex = this.at;
      return SCALAR.test(this.#text) ? SCALAR.lastIndex : null;
    }
    let depth = 0;
    NEXT.lastIndex = this.at;
    for (let found = NEXT.exec(this.#text); found; found = NEXT.exec(this.#text)) {
      if (found[0] === '"') {
        const end = this.#endOfString(found.index);
        if (end === null) return null;
        NEXT.lastIndex = end;
      } else {
        depth += found[0] === "[" || found[0] === "{" ? 1 : -1;
        if (depth === 0) return NEXT.lastIndex;
      }
    }
    return null;
  }

  #endOfString(from) {
    for (let end = this.#text.indexOf('"', from + 1); end >= 0; end = this.#text.indexOf('"', end + 1)) {
      let slashes = 0;
      while (this.#text[end - 1 - slashes] === "\\") slashes++;
      if (slashes % 2 === 0) return end + 1;
    }
    return null;
  }

  /** Steps over a comma; false: there is none, and the list or object is at its end or broken. */
  #goesOn(closing) {
    if (this.next === ",") this.#sign(",");
    else if (this.next !== closing) return false;
    return true;
  }

  #sign(sign) {
    if (this.next !== sign) return;
    this.at++;
    this.#skip(SPACE);
  }

  #skip(pattern) {
    pattern.lastIndex = this.at;
    pattern.test(this.#text);
    this.at = pattern.lastIndex;
  }
}
