/** Copies text, also on a page served over plain http from another host, where navigator.clipboard is missing. */

import { announce } from "./announce.js";
import { text } from "../texts.js";
import { icon, iconButton } from "./dom.js";

/** @returns {Promise<boolean>} whether the text is on the clipboard now */
async function copyText(words) {
  if (navigator.clipboard) {
    try {
      await navigator.clipboard.writeText(words);
      return true;
    } catch {
      // Refused by a permission: the older way below may still be allowed.
    }
  }
  const before = document.activeElement;
  const field = document.createElement("textarea");
  field.value = words;
  field.className = "visually-hidden";
  // What lies behind an open dialog cannot be selected.
  (document.querySelector("dialog:modal") ?? document.body).append(field);
  field.select();
  const copied = document.execCommand("copy");
  field.remove();
  before?.focus();
  return copied;
}

/** Copies, says so, and shows it on the button for a moment. */
export async function copyFrom(button, words) {
  const copied = await copyText(words);
  button.dataset.copied = copied ? "yes" : "no";
  announce(text(copied ? "copied.yes" : "copied.no"));
  setTimeout(() => {
    delete button.dataset.copied;
  }, 1600);
}

/** A button that copies what `words()` gives when it is pressed. */
export function copyButton(label, words) {
  const button = iconButton("copy", label, { onclick: () => copyFrom(button, words()) });
  button.append(icon("check"));
  return button;
}
