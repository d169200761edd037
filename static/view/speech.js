/**
 * A growing Markdown text as one would say it, sentence by sentence. It does not know who listens.
 *
 * Code and tables are said to be there and are not read out; a formula is its source. What is not complete is not
 * said: a sentence is, when a space or a new line follows.
 */

import { text as say } from "../texts.js";

const SENTENCE = /^.*?(?:[.!?…؟۔।]+["'”’»)\]*_`]*(?=\s)|[。！？][”’」』）]*)/;
const FENCE = /^\s*(`{3,}|~{3,})/;
const ROW = /^\s*\|/;
const FORMULA = /^\s*(?:\$\$|\\\[)/;
const FORMULA_END = /(?:\$\$|\\\])\s*$/;
const RULE = /^\s*(?:[-*_]\s*){3,}$/;
const ITEM_MARK = /^\s*(?:>\s*)*(?:#{1,6}\s+|[-+*]\s+(?:\[[ xX]\]\s+)?)?/;
const NUMBER = /^\s*(?:>\s*)*\d{1,9}[.)]\s+/;
/** The beginning of a line that may yet become one of those. */
const UNDECIDED = /^\s*(?:[`~|$\\].*|[-+*_#>\d.)\s]*)$/;

const IMAGE = /!\[([^\]]*)\]\([^)]*\)/g;
const LINK = /\[([^\]]*)\]\([^)]*\)/g;
const INLINE_FORMULA = /\$(?! )([^$]+?)(?<! )\$(?!\d)|\\\((.+?)\\\)/g;
const EMPHASIS = /\*+(?=\S)|(?<=\S)\*+|(?<!\w)_+(?=\w)|(?<=\w)_+(?!\w)|~~|`+/g;

const Block = Object.freeze({ PROSE: "prose", CODE: "code", TABLE: "table", FORMULA: "formula" });

export class Speech {
  #at = 0;
  #block = Block.PROSE;
  #fence = "";

  /** Whatever can be said of the text and was not yet. `complete`: nothing more will come. */
  *of(text, { complete = false } = {}) {
    while (this.#at < text.length) {
      const before = this.#at;
      const spoken = this.#next(text, complete);
      if (this.#at === before) return;
      if (spoken) yield spoken;
    }
  }

  /** Goes one sentence on, or one line, and tells how it is said; stands still where neither is complete. */
  #next(text, complete) {
    const end = text.indexOf("\n", this.#at);
    const whole = end >= 0 || complete;
    const line = text.slice(this.#at, end >= 0 ? end : undefined);
    const begins = this.#at === 0 || text[this.#at - 1] === "\n";
    const pass = (length) => {
      this.#at = Math.min(this.#at + length, text.length);
    };
    if (begins) {
      if (!whole && (this.#block !== Block.PROSE || UNDECIDED.test(line))) return "";
      const spoken = this.#asBlock(line);
      if (spoken !== null) {
        pass(line.length + 1);
        return spoken;
      }
    }
    // The dot of an item's number ends no sentence.
    const number = begins ? (line.match(NUMBER)?.[0].length ?? 0) : 0;
    const sentence = line.slice(number).match(SENTENCE)?.[0];
    if (sentence) pass(number + sentence.length);
    else if (whole) pass(line.length + 1);
    else return "";
    return spokenOf(sentence ? line.slice(0, number + sentence.length) : line);
  }

  /** How a whole line is said that is not prose, or null: it is. */
  #asBlock(line) {
    if (this.#block === Block.CODE) {
      if (line.trim().startsWith(this.#fence)) this.#block = Block.PROSE;
      return "";
    }
    if (this.#block === Block.FORMULA) return this.#formula(line);
    if (ROW.test(line)) {
      const first = this.#block !== Block.TABLE;
      this.#block = Block.TABLE;
      return first ? say("speech.table") : "";
    }
    this.#block = Block.PROSE;
    if (FENCE.test(line)) {
      this.#block = Block.CODE;
      this.#fence = line.match(FENCE)[1];
      return say("speech.code");
    }
    if (FORMULA.test(line)) return this.#formula(line.replace(FORMULA, ""));
    return RULE.test(line) ? "" : null;
  }

  #formula(line) {
    this.#block = FORMULA_END.test(line) ? Block.PROSE : Block.FORMULA;
    return line.replace(FORMULA_END, "").trim();
  }
}

/** Prose without its marks. */
function spokenOf(prose) {
  return prose
    .replace(ITEM_MARK, "")
    .replace(IMAGE, (_, alternative) => say("speech.image", alternative))
    .replace(LINK, "$1")
    .replace(INLINE_FORMULA, (_, dollars, brackets) => dollars ?? brackets)
    .replace(EMPHASIS, "")
    .trim();
}
