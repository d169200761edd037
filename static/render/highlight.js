/**
 * Colours for code whose text is complete.
 *
 * Knows highlight.js, and loads it with one language when code in that language is there. Its tree becomes nodes of the
 * page here; its HTML is never asked for. Code of other languages, and very long code, stays as it is.
 */

import { h } from "../view/dom.js";
import { appendText } from "./hidden.js";
import { soon } from "./slices.js";

/** File in vendor/highlightjs -> other names that models give the language. */
const LANGUAGES = {
  bash: "sh zsh",
  c: "h",
  cpp: "c++ cc cxx hpp hh",
  csharp: "cs c#",
  css: "",
  diff: "patch",
  dockerfile: "docker",
  go: "golang",
  ini: "toml",
  java: "",
  javascript: "js jsx mjs cjs node",
  json: "json5 jsonc jsonl",
  kotlin: "kt kts",
  markdown: "md",
  php: "",
  python: "py python3 gyp",
  ruby: "rb",
  rust: "rs",
  shell: "console shellsession",
  sql: "postgres postgresql mysql sqlite",
  swift: "",
  typescript: "ts tsx mts cts",
  xml: "html xhtml svg rss vue svelte",
  yaml: "yml",
};
/** What stands inside of what. */
const WITHIN = { markdown: ["xml"], php: ["xml"], shell: ["bash"], xml: ["css", "javascript"] };

const FILES = new Map(
  Object.entries(LANGUAGES).flatMap(([file, names]) => [file, ...names.split(" ")].map((name) => [name, file])),
);

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

const LONGEST = 12_000;

let hljs = null;
/** File -> a promise of its language being there. */
const loading = new Map();

/** Colours the text of `code`, at once if what it takes is there; a selection in it stays. */
export function highlight(code, language) {
  const file = FILES.get(language.toLowerCase());
  if (!file || code.textContent.length > LONGEST) return;
  if (hljs?.getLanguage(file)) colour(code, file);
  else void load(file).then((found) => found && soon(colourLater(code, file)));
}

function* colourLater(code, file) {
  if (code.isConnected && !code.querySelector(".hl")) colour(code, file);
}

/** @returns {Promise<boolean>} whether the language is there; without it, code is shown in one colour */
function load(file) {
  if (!loading.has(file)) {
    const loaded = Promise.all([loadCore(), ...[file, ...(WITHIN[file] ?? [])].map(loadGrammar)]).then(
      ([, ...grammars]) => {
        for (const [name, grammar] of grammars) hljs.registerLanguage(name, grammar);
        return true;
      },
      () => {
        loading.delete(file);
        return false;
      },
    );
    loading.set(file, loaded);
  }
  return loading.get(file);
}

async function loadCore() {
  const { default: core } = await import("../vendor/highlightjs/core.min.js");
  core.configure({ __emitter: Nodes });
  hljs = core;
}

async function loadGrammar(name) {
  const module = await import(`../vendor/highlightjs/${name}.min.js`);
  return [name, module.default];
}

function colour(code, file) {
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

/** Where the selection begins and ends in the text of an element; null: not in it. */
function selectionIn(element) {
  const selection = getSelection();
  if (!selection.rangeCount || selection.isCollapsed) return null;
  const { startContainer, startOffset, endContainer, endOffset } = selection.getRangeAt(0);
  if (!element.contains(startContainer) || !element.contains(endContainer)) return null;
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
