/** Asks before something is removed for good. */

import { h } from "./dom.js";
import { text } from "../texts.js";

export class RemovalDialog {
  #dialog;
  #what = h("strong", { dir: "auto" });

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
        h("h2", { id: "removal-title" }, text("removal.title")),
        h("p", {}, this.#what),
        h("p", {}, text("removal.what")),
        h("div", { class: "choices" }, keep, remove),
      ),
    );
    root.append(this.#dialog);
  }

  /** @returns {Promise<boolean>} whether it is to be removed */
  ask(what) {
    this.#what.textContent = what;
    this.#dialog.returnValue = "";
    this.#dialog.showModal();
    return new Promise((resolve) => {
      this.#dialog.onclose = () => resolve(this.#dialog.returnValue === "remove");
    });
  }
}
