/**
 * Code as a figure: its language, a button that copies it, and the text, which is never parsed as HTML.
 *
 * Knows how code looks while it is written and after. Colours are the highlighter's.
 */

import { h, icon, iconButton } from "../view/dom.js";
import { text as say } from "../texts.js";
import { appendText } from "./hidden.js";
import { highlight } from "./highlight.js";

/** A figure for code; `code` is the element that holds the text. */
export function codeFigure(code, language) {
  const copy = iconButton("copy", say("code.copy"), { class: "icon-button copy-code" });
  copy.append(icon("check"));
  return h(
    "figure",
    { class: "code" },
    h("figcaption", {}, h("span", {}, language || say("code.plain")), copy),
    h("pre", { tabindex: "0", dir: "ltr" }, code),
  );
}

/** Code that grows: a long listing costs one appended text per frame, and a selection in it stays. */
export class CodeBlock {
  language;
  nodes;
  #code = h("code");
  #text = "";
  #done = false;

  constructor(language) {
    this.language = language;
    this.nodes = [codeFigure(this.#code, language)];
  }

  /** Shows `text`; with `done`, nothing will be added to it. */
  show(text, done) {
    if (text !== this.#text) {
      // Colours are those of another text.
      if (this.#done || !text.startsWith(this.#text)) this.#code.replaceChildren();
      appendText(this.#code, text.slice(this.#code.hasChildNodes() ? this.#text.length : 0));
      this.#text = text;
      this.#done = false;
    }
    if (done && !this.#done) highlight(this.#code, this.language);
    this.#done = done;
  }
}
