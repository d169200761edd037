/** Copies text, also on a page served over plain http from another host, where navigator.clipboard is missing. */

import { text } from "../texts.js";

/** @returns {Promise<boolean>} whether the text is on the clipboard now */
export async function copyText(words) {
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
  document.body.append(field);
  field.select();
  const copied = document.execCommand("copy");
  field.remove();
  before?.focus();
  return copied;
}

/** Copies, and shows on the button for a moment that it did. */
export async function copyFrom(button, words) {
  const copied = await copyText(words);
  const label = button.getAttribute("aria-label");
  button.dataset.copied = copied ? "yes" : "no";
  button.setAttribute("aria-label", text(copied ? "copied.yes" : "copied.no"));
  setTimeout(() => {
    delete button.dataset.copied;
    button.setAttribute("aria-label", label);
  }, 1600);
}
