/**
 * The way to the search: a dialog that is there at once, so that no letter typed into it is lost, and that is filled
 * when what searches has been loaded.
 */

import { Door } from "./door.js";
import { h, iconButton } from "./dom.js";
import { keysOf } from "./keys.js";
import { text } from "../texts.js";

export class SearchDoor {
  #dialog;
  #field;
  #door;

  /**
   * @param root where dialogs are
   * @param button opens it, and tells which keys do
   * @param what {chat, onopen, ontrouble}: as SearchDialog's; called when it could not be loaded
   */
  constructor(root, button, { chat, onopen, ontrouble }) {
    this.#field = h("input", {
      type: "text",
      role: "combobox",
      "aria-label": text("search.field"),
      placeholder: text("search.placeholder"),
      "aria-controls": "search-results",
      "aria-expanded": "true",
      "aria-autocomplete": "list",
      autocomplete: "off",
      autocapitalize: "off",
      spellcheck: "false",
      enterkeyhint: "go",
      dir: "auto",
    });
    const list = h("ul", { id: "search-results", role: "listbox", "aria-label": text("search.results") });
    const state = h("p", { class: "state", role: "status" });
    this.#dialog = h(
      "dialog",
      { id: "search", "aria-label": text("search.title") },
      h("div", { class: "query" },
        this.#field,
        iconButton("close", text("page.close"), { onclick: () => this.#dialog.close() }),
      ),
      list,
      state,
    );
    this.#dialog.addEventListener("click", ({ target }) => target === this.#dialog && this.#dialog.close());
    root.append(this.#dialog);
    const parts = { dialog: this.#dialog, field: this.#field, list, state };
    this.#door = new Door({
      load: () => import("./search.js"),
      styles: "/static/styles/search.css",
      make: ({ SearchDialog }) => new SearchDialog(parts, chat, onopen),
      ontrouble: () => {
        if (!this.#dialog.open) return;
        this.#dialog.close();
        ontrouble();
      },
    });
    this.#door.expect(button);
    button.addEventListener("click", () => this.open());
    button.querySelector("kbd").textContent = keysOf("mod+k").join(" ");
  }

  open() {
    if (this.#dialog.open) return;
    this.#dialog.showModal();
    this.#field.select();
    void this.#door.open((search) => this.#dialog.open && search.begin());
  }
}
