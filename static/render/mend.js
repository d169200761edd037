/**
 * What to show of a text whose end is still being written.
 *
 * Knows marks that come in two halves. It does not know where blocks begin: it is given the last one.
 */

import { maskFormulas } from "./math.js";

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
  const bolds = maskFormulas(text.replace(/`+[^`]*`+/g, "")).match(/\*\*/g) ?? [];
  return bolds.length % 2 === 1 ? `${text.trimEnd()}**` : text;
}
