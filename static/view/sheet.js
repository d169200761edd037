/**
 * A sheet beside the page, or over all of it where there is no room beside. Knows how it opens, closes and gives the
 * focus back; it does not know what is in it.
 */

import { h, iconButton } from "./dom.js";
import { text } from "../texts.js";

const narrow = matchMedia("(width < 48rem)");

export class Sheet {
  #dialog;
  #opener;
  /** What had the focus when it was opened. */
  #before = null;

  /**
   * @param root where dialogs are
   * @param opener the button that opens and closes it, and is told whether it is open
   * @param {{id: string, title: string}} what
   * @param {...Element} content
   */
  constructor(root, opener, { id, title }, ...content) {
    this.#opener = opener;
    this.#dialog = h(
      "dialog",
      { id, class: "sheet", "aria-labelledby": `${id}-title` },
      h(
        "div",
        { class: "sheet-head" },
        h("h2", { id: `${id}-title`, tabindex: "-1", autofocus: true }, title),
        iconButton("close", text("settings.close"), { onclick: () => this.close() }),
      ),
      h("div", { class: "sheet-body" }, ...content),
    );
    root.append(this.#dialog);
    opener.setAttribute("aria-controls", id);
    this.#dialog.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || event.isComposing || event.defaultPrevented) return;
      // Elsewhere the key stops the answer.
      event.preventDefault();
      this.close();
    });
    // A phone's gesture of going back.
    this.#dialog.addEventListener("cancel", (event) => {
      event.preventDefault();
      this.close();
    });
    this.#dialog.addEventListener("close", () => opener.setAttribute("aria-expanded", "false"));
    narrow.addEventListener("change", () => this.isOpen && this.#reopen());
  }

  get isOpen() {
    return this.#dialog.open;
  }

  toggle() {
    if (this.isOpen) this.close();
    else this.open();
  }

  open() {
    if (this.isOpen) return;
    this.#before = document.activeElement;
    if (narrow.matches) this.#dialog.showModal();
    else this.#dialog.show();
    this.#opener.setAttribute("aria-expanded", "true");
  }

  /** Closes it; the focus, if it was in it, goes back to where it came from. */
  close() {
    const hadFocus = this.#dialog.contains(document.activeElement);
    this.settle();
    this.#dialog.close();
    if (!hadFocus) return;
    const before = this.#before;
    (before?.isConnected && before !== document.body ? before : this.#opener).focus();
  }

  /** Has the field that somebody is writing in say what it holds now. */
  settle() {
    if (this.#dialog.contains(document.activeElement)) document.activeElement.blur();
  }

  #reopen() {
    this.close();
    this.open();
  }
}
