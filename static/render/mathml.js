/**
 * TeX to MathML. Loaded when there is a formula, and temml with it.
 *
 * Knows temml and which MathML may be shown. The page's nodes are made here, one by one, from temml's tree: nothing is
 * parsed as HTML, and what is not listed here cannot come to be. A formula that does not fit is shown as its source.
 */

import temml from "../vendor/temml/temml.min.js";
import { h } from "../view/dom.js";
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

/** The element for a formula as it was written; null: it is shown as its source. */
export function formula(source, display) {
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
