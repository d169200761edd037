/**
 * TeX to MathML. Whoever has formulas waits a moment for the first one: temml is loaded when it is needed.
 *
 * Knows temml and which MathML may be shown. The page's nodes are made here, one by one, from temml's tree: nothing is
 * parsed as HTML, and what is not listed here cannot come to be. A formula that does not fit is shown as its source.
 */

import { h } from "../view/dom.js";
import { soon } from "./slices.js";
import { texOf } from "./math.js";

const MATHML = "http://www.w3.org/1998/Math/MathML";
const ELEMENTS = new Set(
  (
    "math menclose mfrac mi mmultiscripts mn mo mover mpadded mphantom mprescripts mroot mrow mspace msqrt mstyle " +
    "msub msubsup msup mtable mtd mtext mtr munder munderover none semantics"
  ).split(" "),
);
const ATTRIBUTES = new Set(
  (
    "accent columnalign columnlines columnspacing depth display displaystyle fence form height largeop linebreak " +
    "linethickness lspace mathbackground mathcolor mathsize mathvariant maxsize minsize movablelimits notation " +
    "rowlines rowspacing rspace scriptlevel separator stretchy style symmetric voffset width"
  ).split(" "),
);
const SIDES = "(?:Top|Right|Bottom|Left)?";
const STYLES = new RegExp(
  `^(?:(?:border|margin|padding)${SIDES}|bottom|color|display|font-?(?:family|style|weight)|height|justifyContent|` +
    "left|math-?depth|position|right|text-?align|transform|width)$",
  "i",
);

const LIMITS = { characters: 4000, expansions: 200, nodes: 4000, depth: 64 };
const OPTIONS = { trust: false, strict: false, throwOnError: true, maxSize: [20, 200], maxExpand: LIMITS.expansions };
// Macros that a formula defines multiply what it writes; each formula is on its own, so that it needs none.
const DEFINES = /\\(?:[egx]?def|let|futurelet|(?:re|provide)?newcommand|providecommand|renewcommand)(?![a-z])/i;
const LONG = 60;
const NUM_KEPT = 300;

let temml = null;
let loading = null;
/** Formulas shown before, which a growing paragraph shows again with every frame: source -> element. */
const kept = new Map();

/** Puts formulas in the place of their sources under `root`, as steps. */
export function* typeset(root) {
  for (const source of root.querySelectorAll("code.math")) {
    if (temml) {
      put(source);
      yield;
    } else {
      void load().then((found) => found && soon(putLater(source)));
    }
  }
}

function* putLater(source) {
  if (source.isConnected) put(source);
}

/** @returns {Promise<boolean>} whether it is there; without it, formulas stay as they were written */
function load() {
  loading ??= Promise.all([import("../vendor/temml/temml.min.js"), loadStyles()]).then(
    ([module]) => {
      temml = module.default;
      return true;
    },
    () => {
      loading = null;
      return false;
    },
  );
  return loading;
}

function loadStyles() {
  const link = h("link", { rel: "stylesheet", href: new URL("../vendor/temml/Temml-Local.css", import.meta.url).href });
  return new Promise((resolve, reject) => {
    link.addEventListener("load", resolve);
    link.addEventListener("error", reject);
    document.head.append(link);
  });
}

function put(source) {
  const display = source.classList.contains("display");
  const key = `${display}${source.textContent}`;
  if (!kept.has(key)) {
    if (kept.size >= NUM_KEPT) kept.delete(kept.keys().next().value);
    kept.set(key, formula(source.textContent, display));
  }
  const element = kept.get(key);
  if (element) source.replaceWith(element.cloneNode(true));
}

/** The element for a formula as it was written; null: it is shown as its source. */
function formula(source, display) {
  const tex = texOf(source);
  if (tex.length > LIMITS.characters || DEFINES.test(tex)) return null;
  try {
    const tree = temml.__renderToMathMLTree(tex, { ...OPTIONS, displayMode: display });
    const scrolls = display && tex.length > LONG;
    return h(
      "span",
      { class: display ? "formula display" : "formula", dir: "ltr", tabindex: scrolls ? "0" : null },
      toNode(tree, { nodes: 0 }, 0),
    );
  } catch {
    // Whatever temml says of it, or of its size: the reader sees what the model wrote.
    return null;
  }
}

/** @throws {RangeError} something that is not listed, or too much of it */
function toNode(tree, count, depth) {
  const { text, attributes, classes, style, children } = tree;
  if (typeof text === "string") return document.createTextNode(text);
  if ((count.nodes += 1) > LIMITS.nodes || depth > LIMITS.depth) throw new RangeError("formula: too large");
  const node = emptyNode(tree);
  if (attributes && classes?.length) node.setAttribute("class", classes.filter(Boolean).join(" "));
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (!ATTRIBUTES.has(name)) continue;
    if (name === "style") dress(node, Object.fromEntries(declarations(value)));
    else node.setAttribute(name, value);
  }
  if (attributes) dress(node, style ?? {});
  for (const child of children ?? []) node.append(toNode(child, count, depth + 1));
  return node;
}

/** temml's tree has MathML, HTML spans, and mere groups, which have no attributes. */
function emptyNode({ type, attributes, href, src }) {
  if (type ? !ELEMENTS.has(type) : (href ?? src) !== undefined) throw new RangeError("formula: not shown");
  if (type) return document.createElementNS(MATHML, type);
  return attributes ? document.createElement("span") : document.createDocumentFragment();
}

/** `style` as an attribute is what the page's policy forbids; the same through the object model is allowed. */
function dress(node, style) {
  for (const [name, value] of Object.entries(style)) {
    if (!STYLES.test(name) || /url|[:;\\]/i.test(value)) continue;
    if (name.includes("-")) node.style.setProperty(name, value);
    else node.style[name] = value;
  }
}

function declarations(text) {
  return text
    .split(";")
    .map((declaration) => declaration.split(":").map((part) => part.trim()))
    .filter((parts) => parts.length === 2);
}
