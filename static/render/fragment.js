/**
 * A block's HTML as it stands on the page: sanitised, code in figures, tables in boxes, formulas as formulas.
 *
 * Knows the parts of a block. It does not know what is on the page already.
 */

import { h } from "../view/dom.js";
import { text as say } from "../texts.js";
import { codeFigure } from "./code.js";
import { typeset } from "./formula.js";
import { appendText } from "./hidden.js";
import { highlight } from "./highlight.js";
import { sanitise } from "./sanitise.js";

const BLOCKS_OF_TEXT = "p, li, h1, h2, h3, h4, h5, h6, blockquote, td, th, summary";

/** HTML to what may stand on the page, as steps; `open`: code at its end is not complete. */
export function* fragmentOf(html, open) {
  const fragment = sanitise(html);
  dressCode(fragment, open);
  for (const table of fragment.querySelectorAll("table")) {
    const scroll = h("div", { class: "table-scroll", tabindex: "0", role: "region", "aria-label": say("code.table") });
    table.replaceWith(scroll);
    scroll.append(table);
  }
  for (const item of fragment.querySelectorAll("li")) {
    if (/^\s*[☑☐] /.test(item.textContent)) item.classList.add("task");
  }
  for (const block of fragment.querySelectorAll(BLOCKS_OF_TEXT)) block.setAttribute("dir", "auto");
  yield* typeset(fragment);
  return fragment;
}

function dressCode(fragment, open) {
  for (const code of fragment.querySelectorAll("code:not(.math)")) {
    const text = code.textContent;
    code.textContent = "";
    appendText(code, text);
  }
  const listings = [...fragment.querySelectorAll("pre")];
  for (const pre of listings) {
    const code = pre.querySelector("code") ?? h("code", {}, pre.textContent);
    const language = code.className.replace("language-", "");
    pre.replaceWith(codeFigure(code, language));
    if (!open || pre !== listings.at(-1)) highlight(code, language);
  }
}
