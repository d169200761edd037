/**
 * Where formulas are in a text: `$…$` and `\(…\)` in a line, `$$…$$` and `\[…\]` on their own.
 *
 * Knows how people and models write formulas, and how they write prices. It does not know TeX.
 */

import { escapeHtml } from "./escape.js";

// A formula ends at a blank line at the latest.
const BODY = String.raw`(?:(?!\n[ \t]*\n)[^$\\]|\\[^()[\]])+?`;
const DISPLAY = new RegExp(String.raw`^\$\$(?!\$)${BODY}\$\$|^\\\[${BODY}\\\]`);
const INLINE = new RegExp(String.raw`^\\\(${BODY}\\\)`);
const DOLLARS = /^\$(?![\s$])((?:[^$\\\n`]|\\.)+)\$(?!\d)/;
const ALONE = /^[ \t]*(?:\n|$)/;

const COMMAND = /\\[a-z]+\s*(?:\{[^{}]*\})?/gi;
const PROSE = /\b[a-z]{3,}[,;:]? +[a-z]{2,}|^[\d.,]+[a-z%]* +[a-z]{2,}/i;

/** Whether this could be, or become, what stands between two dollar signs: "5 and" could not. */
function mayBeFormula(body) {
  return !PROSE.test(body.replace(COMMAND, ""));
}

/** The formula between single dollar signs that `text` begins with, if it is one; `before`: the character before it. */
function dollars(text, before) {
  if (/[\p{L}\p{N}$\\]/u.test(before)) return null;
  const [raw, body] = text.match(DOLLARS) ?? [];
  return raw && !/\s$/.test(body) && mayBeFormula(body) ? raw : null;
}

/** Whether a formula between single dollar signs may have begun at the end of a text. */
function mayBecomeDollars(text, before) {
  return /^\$[^\s$`][^$\n`]*$/.test(text) && !/[\p{L}\p{N}$]/u.test(before) && mayBeFormula(text.slice(1));
}

/** Two extensions of marked: their tokens become the `code` element of class `math` that `formula.js` fills. */
export const mathExtensions = [
  {
    name: "formulaBlock",
    level: "block",
    start(source) {
      const end = source.search(/\n[ \t]*\n/);
      return (end < 0 ? source : source.slice(0, end)).match(/\n {0,3}(?:\$\$|\\\[)/)?.index;
    },
    tokenizer(source) {
      const indent = source.match(/^ {0,3}/)[0].length;
      const raw = source.slice(indent).match(DISPLAY)?.[0];
      const rest = raw && source.slice(indent + raw.length).match(ALONE)?.[0];
      if (rest === undefined) return undefined;
      return { type: "formulaBlock", raw: source.slice(0, indent) + raw + rest, formula: raw };
    },
    renderer: ({ formula }) => `<p>${placeholder(formula, true)}</p>\n`,
  },
  {
    name: "formula",
    level: "inline",
    start: (source) => source.match(/\$|\\[([]/)?.index,
    tokenizer(source, before) {
      const display = source.match(DISPLAY)?.[0];
      const raw = display ?? source.match(INLINE)?.[0] ?? dollars(source, before.at(-1)?.raw.at(-1) ?? "");
      return raw ? { type: "formula", raw, display: display !== undefined } : undefined;
    },
    renderer: ({ raw, display }) => placeholder(raw, display),
  },
];

function placeholder(source, display) {
  return `<code class="math${display ? " display" : ""}">${escapeHtml(source)}</code>`;
}

/** The TeX of a formula as it stands in the text. */
export function texOf(source) {
  const length = /^\$[^$]/.test(source) ? 1 : 2;
  return source.slice(length, -length);
}

/** Stars and underlines in a formula emphasise nothing: the same text, as long, without them. */
export function maskFormulas(text) {
  return text.replace(/\$[^\s$](?:[^$\n]*[^\s$])?\$(?!\d)/g, (formula) => formula.replace(/[*_~]/g, "+"));
}

/** Where a formula begins that is not complete at the end of this text; -1: all are complete. */
export function openFormula(text) {
  const marks = /`+|\\[^]?|\$\$?/g;
  for (let mark; (mark = marks.exec(text)); ) {
    const { 0: found, index } = mark;
    const rest = text.slice(index);
    if (found === "\\" || (found.startsWith("$") && rest === found)) return index;
    if (found.startsWith("`")) {
      const closing = rest.slice(found.length).match(new RegExp(`(?<!\`)${found}(?!\`)`));
      // What comes is code.
      if (!closing) return -1;
      marks.lastIndex = index + found.length + closing.index + found.length;
    } else if (found === "$") {
      const before = text[index - 1] ?? "";
      const complete = dollars(rest, before);
      if (complete) marks.lastIndex = index + complete.length;
      else if (mayBecomeDollars(rest, before)) return index;
    } else if (found === "$$" || found === "\\(" || found === "\\[") {
      const complete = rest.match(DISPLAY)?.[0] ?? rest.match(INLINE)?.[0];
      if (complete) marks.lastIndex = index + complete.length;
      else if (!/\n[ \t]*\n/.test(rest)) return index;
    }
  }
  return -1;
}
