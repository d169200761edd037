/**
 * Text with marks where a reader who copies it would be deceived: at characters without a shape, and at those that turn
 * the direction of others.
 */

import { h } from "../view/dom.js";

// Controls, directions, spaces without width, fillers, and the tags that spell hidden words.
const HIDDEN = new RegExp(
  "[\\u0000-\\u0008\\u000B-\\u001F\\u007F-\\u009F\\u00AD\\u034F\\u061C\\u115F\\u1160\\u17B4\\u17B5\\u180E" +
    "\\u200B-\\u200F\\u2028-\\u202E\\u2060-\\u206F\\u3164\\uFEFF\\uFFA0\\uFFF9-\\uFFFB\\u{E0000}-\\u{E007F}]",
  "gu",
);
// Joiners belong to emoji and to many scripts; between Latin letters they only hide.
const JOINERS = "\u200C\u200D";

/** Adds text at the end of an element, with marks for what could not be seen. */
export function appendText(element, text) {
  let from = 0;
  for (const { 0: character, index } of text.matchAll(HIDDEN)) {
    const before = text[index - 1] ?? element.textContent.at(-1) ?? "";
    if (JOINERS.includes(character) && before > "\u02FF") continue;
    appendPlain(element, text.slice(from, index));
    element.append(hiddenMark(character));
    from = index + character.length;
  }
  appendPlain(element, text.slice(from));
}

function appendPlain(element, text) {
  if (!text) return;
  const last = element.lastChild;
  // A selection in a text node survives what is added to it.
  if (last instanceof Text) last.appendData(text);
  else element.append(text);
}

function hiddenMark(character) {
  const number = character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
  return h("span", { class: "hidden-character", "data-character": `U+${number}` }, character);
}
