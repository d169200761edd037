/** What all boxes that one writes messages in have in common: which key sends, and that they grow with the text. */

import { isOfInputMethod } from "./keys.js";

export const touch = matchMedia("(pointer: coarse)");

/** Whether a key press sends what was written. A touch keyboard's Enter is for new lines. */
export function isSend(event) {
  if (event.key !== "Enter" || event.shiftKey || isOfInputMethod(event)) return false;
  return !touch.matches || event.ctrlKey || event.metaKey;
}

/** Makes a box as high as its text, where the style sheet cannot. */
export function fit(field) {
  if (CSS.supports("field-sizing", "content")) return;
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight}px`;
}
