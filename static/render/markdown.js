/**
 * Markdown that grows: text in, safe DOM out, block by block.
 *
 * Knows marked, DOMPurify and what model text may become on the page. It does not know messages or sockets.
 * Everything that a model wrote passes `sanitise`, every time; code is set as text and never parsed as HTML.
 */

import { Marked } from "../vendor/marked/marked.esm.js";
import "../vendor/dompurify/purify.min.js";
import { h, icon, iconButton } from "../view/dom.js";
import { text as say } from "../texts.js";

const TAGS =
  "a b blockquote br code del details em h1 h2 h3 h4 h5 h6 hr i ins kbd li mark ol p pre s small strong sub summary " +
  "sup table tbody td th thead tr u ul";
const CLASSES = /^(?:language-[\w+#.-]{1,40}|image-chip)$/;
const BLOCKS_OF_TEXT = "p, li, h1, h2, h3, h4, h5, h6, blockquote, td, th, summary";

// Tags without attributes that models use inside Markdown and that change nothing but type. Any other tag a
// model writes is shown as the text it is, rather than vanishing in the sanitiser.
const PLAIN_TAG = /^<\/?(?:b|br|del|details|em|i|ins|kbd|mark|s|small|strong|sub|summary|sup|u)\s*\/?>$/i;

function escapeHtml(text) {
  return text.replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);
}

/** Images never load by themselves: an image's address can carry data out. It becomes a link that says where to. */
function imageChip({ href, text }) {
  const url = URL.parse?.(href) ?? (URL.canParse(href) ? new URL(href) : null);
  const alt = escapeHtml(text || say("code.image"));
  if (!url || !/^https?:$/.test(url.protocol)) return `<kbd>${alt}</kbd>`;
  return `<a class="image-chip" href="${escapeHtml(url.href)}">${alt} <small>${escapeHtml(url.host)}</small></a>`;
}

const marked = new Marked({
  gfm: true,
  breaks: true,
  renderer: {
    html: ({ text }) => text.replace(/<[^<>]*>|[<>]/g, (tag) => (PLAIN_TAG.test(tag) ? tag : escapeHtml(tag))),
    image: imageChip,
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
  },
});

const purify = globalThis.DOMPurify(window);

purify.addHook("uponSanitizeAttribute", (node, data) => {
  if (data.attrName === "class" && !CLASSES.test(data.attrValue)) data.keepAttr = false;
});

purify.addHook("afterSanitizeAttributes", (node) => {
  if (node.nodeName !== "A" || !node.hasAttribute("href")) return;
  node.setAttribute("target", "_blank");
  node.setAttribute("rel", "noopener noreferrer");
  // Where a link leads must not depend on what its text claims.
  node.setAttribute("title", node.getAttribute("href"));
});

/** HTML to a fragment that may be shown: no script, no style, no form, no frame, no image, no foreign scheme. */
export function sanitise(html) {
  return purify.sanitize(html, {
    ALLOWED_TAGS: TAGS.split(" "),
    ALLOWED_ATTR: ["align", "class", "href", "start"],
    // These carry no address, so the rule for addresses must not judge them.
    ADD_URI_SAFE_ATTR: ["align", "start"],
    ALLOWED_URI_REGEXP: /^(?:https?:\/\/|mailto:)/i,
    ALLOW_ARIA_ATTR: false,
    ALLOW_DATA_ATTR: false,
    RETURN_DOM_FRAGMENT: true,
  });
}

function codeFigure(code, language) {
  const copy = iconButton("copy", say("code.copy"), { class: "icon-button copy-code" });
  copy.append(icon("check"));
  return h(
    "figure",
    { class: "code" },
    h("figcaption", {}, h("span", {}, language || say("code.plain")), copy),
    h("pre", { tabindex: "0", dir: "ltr" }, code),
  );
}

function dress(fragment) {
  for (const pre of fragment.querySelectorAll("pre")) {
    const code = pre.querySelector("code") ?? h("code", {}, pre.textContent);
    const language = code.className.replace("language-", "");
    pre.replaceWith(codeFigure(code, language));
  }
  for (const table of fragment.querySelectorAll("table")) {
    const scroll = h("div", { class: "table-scroll", tabindex: "0", role: "region", "aria-label": say("code.table") });
    table.replaceWith(scroll);
    scroll.append(table);
  }
  for (const item of fragment.querySelectorAll("li")) {
    if (/^\s*[☑☐] /.test(item.textContent)) item.classList.add("task");
  }
  for (const block of fragment.querySelectorAll(BLOCKS_OF_TEXT)) block.setAttribute("dir", "auto");
  return fragment;
}

/**
 * Closes what is still open at the end of a growing block, so that half-written marks do not flicker:
 * an inline code or bold that has begun, a link whose address is not complete, a fence being typed.
 */
export function mend(source) {
  const text = source
    .replace(/(^|\n)[ \t]*[`~]{1,2}$/, "$1")
    .replace(/!?\[([^\]\n]*)\]\([^)\s]*$/, "$1")
    // Opening stars without a word yet, or closing stars of which more may come: closed below if need be.
    .replace(/\*+$/, "");
  const codes = text.match(/`+/g) ?? [];
  if (codes.length % 2 === 1) return text + codes.at(-1);
  const bolds = text.replace(/`+[^`]*`+/g, "").match(/\*\*/g) ?? [];
  return bolds.length % 2 === 1 ? `${text.trimEnd()}**` : text;
}

/** How many blocks at the end may still change when more text comes: a numbered list goes on after a blank line. */
const OPEN_BLOCKS = 2;

/** Shows one growing Markdown text in `root`. Blocks that are finished keep their DOM, and so a reader's selection. */
export class MarkdownView {
  #root;
  #text = "";
  #frame = 0;
  /** What is shown, in order: {key, language, nodes}. */
  #blocks = [];
  /** The tokens after the settled blocks. */
  #tail = [];
  /** So many blocks, made of so many characters, cannot change any more. */
  #settledBlocks = 0;
  #settledChars = 0;

  constructor(root) {
    this.#root = root;
  }

  /** Shows `text`, which begins with what was shown before, in the next animation frame. */
  grow(text) {
    this.#text = text;
    this.#frame ||= requestAnimationFrame(() => {
      this.#frame = 0;
      this.#render(true);
      this.#settle();
    });
  }

  /** Shows the whole of `text` now, as final; `cut` when it ends where nobody meant it to. */
  finish(text, cut = false) {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    this.#text = text;
    // Once more from the start: only now are all link definitions known. Blocks that did not change stay.
    this.#settledBlocks = 0;
    this.#settledChars = 0;
    this.#render(cut);
  }

  #render(open) {
    const text = this.#text.replace(/\r\n?/g, "\n");
    const tokens = marked.lexer(text.slice(this.#settledChars));
    // Links that are defined further down change how the blocks before them look.
    const defined = JSON.stringify(tokens.links);
    const last = tokens.findLastIndex((token) => token.type !== "space");
    tokens.forEach((token, i) => this.#show(this.#settledBlocks + i, token, open && i === last, defined));
    for (const block of this.#blocks.splice(this.#settledBlocks + tokens.length)) removeAll(block.nodes);
    this.#tail = tokens;
  }

  /** Puts `token` at place `index`, touching the DOM only where what it shows has changed. */
  #show(index, token, open, defined) {
    if (token.type === "code") return this.#showCode(index, token, open);
    const source = open ? mend(token.raw) : token.raw;
    const key = `${token.type}:${defined}:${source}`;
    if (this.#blocks[index]?.key === key) return;
    const shown = source === token.raw ? [token] : marked.lexer(source);
    const fragment = dress(sanitise(marked.parser(shown)));
    this.#replace(index, { key, nodes: [...fragment.childNodes] });
  }

  /** Code grows in place: a long listing costs one appended text per frame, and a selection in it stays. */
  #showCode(index, token, open) {
    // The fence that will close it may be half typed.
    const text = open ? token.text.replace(/(^|\n)`{1,2}$/, "") : token.text;
    const language = (token.lang ?? "").match(/^\S*/)[0];
    const old = this.#blocks[index];
    if (old?.code && old.language === language) {
      setText(old.code.firstChild, text);
      return;
    }
    const code = h("code");
    code.append(document.createTextNode(text));
    this.#replace(index, { language, code, nodes: [codeFigure(code, language)] });
  }

  #replace(index, block) {
    const old = this.#blocks[index];
    const before = this.#blocks.slice(index + 1).find((later) => later.nodes.length > 0)?.nodes[0] ?? null;
    if (old) removeAll(old.nodes);
    for (const node of block.nodes) this.#root.insertBefore(node, before);
    this.#blocks[index] = block;
  }

  /** Leaves behind the blocks that no further text can change, so that a frame costs the tail and not the whole. */
  #settle() {
    let open = 0;
    let end = this.#tail.length;
    while (end > 0 && open < OPEN_BLOCKS) {
      end -= 1;
      if (this.#tail[end].type !== "space") open += 1;
    }
    for (const token of this.#tail.slice(0, end)) this.#settledChars += token.raw.length;
    this.#settledBlocks += end;
  }
}

function removeAll(nodes) {
  for (const node of nodes) node.remove();
}

/** Changes a text node without losing a selection in the part that stays. */
function setText(node, text) {
  if (text.startsWith(node.data)) node.appendData(text.slice(node.data.length));
  else node.data = text;
}
