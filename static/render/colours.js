/**
 * Colours in code. Loaded when there is code, and highlight.js with it.
 *
 * Knows what highlight.js tells apart. Its tree becomes nodes of the page here; its HTML is never asked for.
 */

import hljs from "../vendor/highlightjs/core.min.js";
import { h } from "../view/dom.js";
import { appendText } from "./hidden.js";

/** What highlight.js tells apart -> what has a colour of its own here. */
const COLOURS = new Map(
  Object.entries({
    keyword: "keyword literal built_in doctag meta tag selector-tag name operator",
    string: "string regexp char link code symbol template-tag",
    number: "number",
    comment: "comment quote",
    title: "title section attr attribute property selector-class selector-id selector-attr selector-pseudo",
    type: "type class variable template-variable",
    added: "addition",
    removed: "deletion",
  }).flatMap(([colour, scopes]) => scopes.split(" ").map((scope) => [scope, colour])),
);

/** A language's rules are there. */
export function learn(file, grammar) {
  hljs.registerLanguage(file, grammar);
}

export function knows(file) {
  return hljs.getLanguage(file) !== undefined;
}

/** Colours the text of `code`; a selection in it stays. */
export function colour(code, file) {
  const text = code.textContent;
  const { _emitter: nodes } = hljs.highlight(text, { language: file, ignoreIllegals: true });
  const selected = selectionIn(code);
  // Should a grammar lose a letter, the code is worth more than its colours.
  if (nodes.root.textContent === text) code.replaceChildren(nodes.root);
  if (selected) select(code, selected);
}

/** What highlight.js writes to, in place of its own maker of HTML. */
class Nodes {
  root = document.createDocumentFragment();
  #open = [this.root];

  addText(text) {
    appendText(this.#open.at(-1), text);
  }

  startScope(scope) {
    const name = COLOURS.get(scope) ?? COLOURS.get(scope.split(".")[0]);
    const around = this.#open.at(-1);
    if (name) around.append(h("span", { class: `hl ${name}` }));
    this.#open.push(name ? around.lastChild : around);
  }

  endScope() {
    this.#open.pop();
  }

  openNode(scope) {
    this.startScope(scope);
  }

  closeNode() {
    this.endScope();
  }

  __addSublanguage(nodes) {
    this.#open.at(-1).append(nodes.root);
  }

  finalize() {}

  toHTML() {
    return "";
  }
}

hljs.configure({ __emitter: Nodes });

/** Where the selection begins and ends in the text of an element; null: not in it. */
function selectionIn(element) {
  const selection = getSelection();
  // To say more of it than this, the browser lays out the page.
  if (!element.contains(selection.anchorNode) || !element.contains(selection.focusNode)) return null;
  if (selection.isCollapsed) return null;
  const { startContainer, startOffset, endContainer, endOffset } = selection.getRangeAt(0);
  return [lengthTo(element, startContainer, startOffset), lengthTo(element, endContainer, endOffset)];
}

function lengthTo(element, container, offset) {
  const range = new Range();
  range.setStart(element, 0);
  range.setEnd(container, offset);
  return range.toString().length;
}

function select(element, [start, end]) {
  const range = new Range();
  const texts = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  let at = 0;
  for (let node; (node = texts.nextNode()); at += node.length) {
    if (start >= at && start <= at + node.length) range.setStart(node, start - at);
    if (end > at && end <= at + node.length) range.setEnd(node, end - at);
  }
  getSelection().setBaseAndExtent(range.startContainer, range.startOffset, range.endContainer, range.endOffset);
}
