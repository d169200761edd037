/**
 * Markdown: text to blocks, and blocks to HTML. What comes out is not safe yet: `sanitise` makes it so.
 *
 * Knows marked, and how models write. Blocks are found first; what is in their lines is looked at when they are to be
 * shown, so that a long text costs little where nothing has changed.
 */

import { Lexer, Marked } from "../vendor/marked/marked.esm.js";
import { text as say } from "../texts.js";
import { escapeHtml } from "./escape.js";
import { maskFormulas, mathExtensions } from "./math.js";

// Tags without attributes that models use inside Markdown and that change nothing but type. Any other tag a
// model writes is shown as the text it is, rather than vanishing in the sanitiser.
const PLAIN_TAG = /^<\/?(?:b|br|del|details|em|i|ins|kbd|mark|s|small|strong|sub|summary|sup|u)\s*\/?>$/i;

const marked = new Marked({
  gfm: true,
  breaks: true,
  extensions: mathExtensions,
  hooks: { emStrongMask: maskFormulas },
  renderer: {
    html: ({ text }) => text.replace(/<[^<>]*>|[<>]/g, (tag) => (PLAIN_TAG.test(tag) ? tag : escapeHtml(tag))),
    image: imageChip,
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
  },
});

/** Images never load by themselves: an image's address can carry data out. It becomes a link that says where to. */
function imageChip({ href, text }) {
  const url = URL.canParse(href) ? new URL(href) : null;
  const alt = escapeHtml(text || say("code.image"));
  if (!url || !/^https?:$/.test(url.protocol)) return `<kbd>${alt}</kbd>`;
  return `<a class="image-chip" href="${escapeHtml(url.href)}">${alt} <small>${escapeHtml(url.host)}</small></a>`;
}

/** A text as blocks. */
export class Source {
  /** marked's tokens, in order. */
  blocks;
  /** The links that are defined in it or were known before: name -> where to. */
  links;
  #lexer = new Lexer(marked.defaults);
  /** Tokens of a line that was not looked at yet -> what it says. */
  #lines;

  constructor(text, links = {}) {
    Object.assign(this.#lexer.tokens.links, links);
    this.blocks = this.#lexer.blockTokens(text, this.#lexer.tokens);
    this.links = this.#lexer.tokens.links;
    this.#lines = new Map(this.#lexer.inlineQueue.map(({ src, tokens }) => [tokens, src]));
  }

  /** These blocks as HTML; a list or a table may be given with some of its items or rows only. */
  html(blocks) {
    for (const block of blocks) this.#read(block);
    return marked.parser(blocks);
  }

  #read({ tokens, items, header, rows }) {
    const line = this.#lines.get(tokens);
    if (line !== undefined) {
      this.#lines.delete(tokens);
      this.#lexer.state.inRawBlock = false;
      this.#lexer.inlineTokens(line, tokens);
    } else {
      for (const part of tokens ?? []) this.#read(part);
    }
    for (const part of [items, header, rows].flat(2)) if (part) this.#read(part);
  }
}
