/**
 * Markdown that grows: text in, safe DOM out, block by block.
 *
 * Knows which blocks are on the page and which of them have changed. How text becomes blocks is the grammar's, what
 * they look like the fragment's. It does not know messages or sockets.
 */

import { CodeBlock } from "./code.js";
import { fragmentOf } from "./fragment.js";
import { Source } from "./grammar.js";
import { holdHeadings, nestHeadings } from "./headings.js";
import { openFormula } from "./math.js";
import { mend } from "./mend.js";
import { now, soon } from "./slices.js";

/** How many blocks at the end may still change when more text comes: a numbered list goes on after a blank line. */
const OPEN_BLOCKS = 2;
/** So many items of a list, or rows of a table, are made in one step. */
const PARTS_AT_ONCE = 20;

/** Blocks made of parts, which grow part by part: what the parts are, where they stand, what else the block is. */
const GROWING = {
  list: {
    parts: "items",
    place: "ol, ul",
    text: (item) => item.raw,
    head: ({ ordered, start, loose }) => `${ordered} ${start} ${loose}`,
  },
  table: {
    parts: "rows",
    place: "tbody",
    text: (row) => JSON.stringify(row.map((cell) => cell.text)),
    head: ({ header, align, rows }) => JSON.stringify([header.map((cell) => cell.text), align, rows.length > 0]),
  },
};

/** Shows one growing Markdown text in `root`. Blocks that are finished keep their DOM, and so a reader's selection. */
export class MarkdownView {
  #root;
  #above;
  #text = "";
  /** Whether more text may come to the end. */
  #open = true;
  #final = false;
  /** The iterator that draws, while it does. */
  #drawing = null;
  /** Whether something has changed since the pass that is being drawn began. */
  #stale = false;
  #whole = Promise.withResolvers();
  /** What is shown, in order: {key, nodes}, {head, keys, place, nodes} of parts, or a CodeBlock. */
  #blocks = [];
  #links = {};
  /** So many blocks, made of so many characters, cannot change any more. */
  #settledBlocks = 0;
  #settledChars = 0;

  /** @param {number} above the level of the heading that the text itself stands under */
  constructor(root, above = 0) {
    this.#root = root;
    this.#above = above;
  }

  /** Shows `text`, which begins with what was shown before, from the next animation frame on. */
  grow(text) {
    if (this.#final) this.#whole = Promise.withResolvers();
    this.#change(text, true, false);
    if (!this.#drawing) soon((this.#drawing = this.#draw()));
  }

  /**
   * Shows the whole of `text` as final; `cut` when it ends where nobody meant it to. What is not too long is there
   * at once.
   * @returns {Promise<void>} when all of it is
   */
  finish(text, cut = false) {
    // Once more from the start: only now are all link definitions known. Blocks that did not change stay.
    this.#settledBlocks = 0;
    this.#settledChars = 0;
    this.#change(text, cut, true);
    now((this.#drawing ??= this.#draw()));
    return this.#whole.promise;
  }

  #change(text, open, final) {
    this.#text = text;
    this.#open = open;
    this.#final = final;
    this.#stale = true;
  }

  *#draw() {
    try {
      while (this.#stale) {
        this.#stale = false;
        yield* this.#pass();
      }
    } finally {
      this.#drawing = null;
    }
    if (this.#final) this.#whole.resolve();
  }

  /** Puts on the page what the text is now. */
  *#pass() {
    const open = this.#open;
    const source = this.#read(open);
    const first = this.#settledBlocks;
    const last = source.blocks.findLastIndex((token) => token.type !== "space");
    for (const [i, token] of source.blocks.entries()) {
      yield* this.#show(first + i, token, source, open && i === last);
      yield;
    }
    for (const block of this.#blocks.splice(first + source.blocks.length)) removeAll(block.nodes);
    // Unless it has been asked meanwhile to begin anew.
    if (!this.#final && this.#settledBlocks === first) this.#settle(source);
  }

  /** The blocks after the settled ones, up to where it is clear what they are. */
  #read(open) {
    const text = this.#text.replace(/\r\n?/g, "\n");
    const tail = text.slice(this.#settledChars);
    let source = new Source(tail, this.#settledChars ? this.#links : {});
    if (open && source.blocks.at(-1)?.type !== "code") {
      const paragraph = tail.lastIndexOf("\n\n") + 1;
      const at = openFormula(tail.slice(paragraph));
      if (at >= 0) source = new Source(tail.slice(0, paragraph + at), this.#settledChars ? this.#links : {});
    }
    // Links that are defined further down change how the blocks before them look.
    if (this.#settledChars && JSON.stringify(source.links) !== JSON.stringify(this.#links)) {
      this.#settledBlocks = 0;
      this.#settledChars = 0;
      return this.#read(open);
    }
    this.#links = source.links;
    return source;
  }

  /** Puts `token` at place `index`, touching the DOM only where what it shows has changed. */
  *#show(index, token, source, open) {
    if (token.type === "code") {
      this.#showCode(index, token, open);
      return;
    }
    const raw = open ? mend(token.raw) : token.raw;
    const mended = raw === token.raw ? source : new Source(raw, source.links);
    const blocks = raw === token.raw ? [token] : mended.blocks.filter(({ type }) => type !== "space");
    if (blocks.length === 1 && blocks[0].type in GROWING) {
      yield* this.#showParts(index, blocks[0], mended, open);
      return;
    }
    const key = `${token.type}:${this.#keyOf(raw, open)}`;
    if (this.#blocks[index]?.key === key) return;
    const fragment = yield* fragmentOf(mended.html(blocks), open);
    this.#replace(index, { key, nodes: [...fragment.childNodes] });
  }

  /** Lists and tables: parts that are finished stay. */
  *#showParts(index, token, source, open) {
    const kind = GROWING[token.type];
    const parts = token[kind.parts];
    const keys = parts.map((part, i) => this.#keyOf(kind.text(part), open && i === parts.length - 1));
    const head = `${token.type}:${this.#keyOf(kind.head(token), false)}`;
    if (this.#blocks[index]?.head !== head) {
      const begun = { ...token, [kind.parts]: parts.slice(0, 1) };
      const whole = yield* fragmentOf(source.html([begun]), open && parts.length <= 1);
      const place = whole.querySelector(kind.place);
      place?.replaceChildren(...place.children);
      this.#replace(index, { head, keys: keys.slice(0, 1), place, nodes: [...whole.childNodes] });
    }
    const block = this.#blocks[index];
    const changed = block.keys.findIndex((key, i) => key !== keys[i]);
    for (let from = changed < 0 ? block.keys.length : changed; from < parts.length; from += PARTS_AT_ONCE) {
      const some = { ...token, [kind.parts]: parts.slice(from, from + PARTS_AT_ONCE) };
      const isLast = from + PARTS_AT_ONCE >= parts.length;
      const more = yield* fragmentOf(source.html([some]), open && isLast);
      const old = [...block.place.children].slice(from);
      const made = [...more.querySelector(kind.place).children];
      removeAll(old);
      block.place.append(...made);
      this.#nest([...old, ...made]);
      block.keys = keys.slice(0, from + PARTS_AT_ONCE);
      yield;
    }
    removeAll([...(block.place?.children ?? [])].slice(parts.length));
    block.keys = keys;
  }

  #showCode(index, token, open) {
    // The fence that will close it may be half typed.
    const text = open ? token.text.replace(/(?:^|\n)`{1,2}$/, "") : token.text;
    const language = (token.lang ?? "").match(/^\S*/)[0];
    if (this.#blocks[index]?.language !== language) this.#replace(index, new CodeBlock(language));
    this.#blocks[index].show(text, !open);
  }

  /** What a text shows depends on more than itself: on the links, and code in it has colours once it is complete. */
  #keyOf(text, open) {
    const links = text.includes("[") ? JSON.stringify(this.#links) : "";
    return `${links}${open && /```|~~~/.test(text) ? "open" : ""}:${text}`;
  }

  #replace(index, block) {
    const old = this.#blocks[index];
    const before = this.#blocks.slice(index + 1).find((later) => later.nodes.length > 0)?.nodes[0] ?? null;
    if (old) removeAll(old.nodes);
    for (const node of block.nodes) this.#root.insertBefore(node, before);
    this.#blocks[index] = block;
    this.#nest([...(old?.nodes ?? []), ...block.nodes]);
  }

  /** What is read aloud while it grows has the right levels, too. */
  #nest(changed) {
    if (holdHeadings(changed)) nestHeadings(this.#root, this.#above);
  }

  /** Leaves behind the blocks that no further text can change, so that a frame costs the tail and not the whole. */
  #settle({ blocks }) {
    let open = 0;
    let end = blocks.length;
    while (end > 0 && open < OPEN_BLOCKS) {
      end -= 1;
      if (blocks[end].type !== "space") open += 1;
    }
    for (const token of blocks.slice(0, end)) this.#settledChars += token.raw.length;
    this.#settledBlocks += end;
  }
}

function removeAll(nodes) {
  for (const node of nodes) node.remove();
}
