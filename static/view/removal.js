/** Asks before something is removed for good. */

import { h } from "./dom.js";
import { text } from "../texts.js";

export class RemovalDialog {
  #dialog;
  #title = h("h2", { id: "removal-title" });
  #what = h("strong", { dir: "auto" });
  #words = h("p");

  /** @param root where dialogs are */
  constructor(root) {
    const keep = h("button", { class: "button", value: "", autofocus: true }, text("removal.keep"));
    const remove = h("button", { class: "button danger", value: "remove" }, text("removal.remove"));
    this.#dialog = h(
      "dialog",
      { id: "removal", "aria-labelledby": "removal-title" },
      h(
        "form",
        { method: "dialog" },
        this.#title,
        h("p", {}, this.#what),
        this.#words,
        h("div", { class: "choices" }, keep, remove),
      ),
    );
    root.append(this.#dialog);
  }

  /**
   * @param {{title: string, what: string, words: string}} question its heading, what it is about in that one's own
   *   words, and what will have happened
   * @returns {Promise<boolean>} whether it is to be removed
   */
  ask({ title, what, words }) {
    this.#title.textContent = title;
    this.#what.textContent = what;
    this.#words.textContent = words;
    this.#dialog.returnValue = "";
    this.#dialog.showModal();
    return new Promise((resolve) => {
      this.#dialog.onclose = () => resolve(this.#dialog.returnValue === "remove");
    });
  }
}
