/** The keys that do something, in a dialog: drawn from what was registered, each time anew. */

import { h, iconButton } from "./dom.js";
import { keysOf } from "./keys.js";
import { text } from "../texts.js";

export class HelpDialog {
  #dialog;
  #groups = h("div", { class: "groups" });
  #keys;

  /**
   * @param root where dialogs are
   * @param keys the Keys it explains
   */
  constructor(root, keys) {
    this.#keys = keys;
    this.#dialog = h(
      "dialog",
      { id: "help", "aria-labelledby": "help-title" },
      h(
        "header",
        {},
        h("h2", { id: "help-title" }, text("keys.title")),
        iconButton("close", text("page.close"), { onclick: () => this.#dialog.close() }),
      ),
      this.#groups,
    );
    root.append(this.#dialog);
  }

  show() {
    this.#groups.replaceChildren(...this.#drawn());
    this.#dialog.showModal();
  }

  #drawn() {
    const groups = Map.groupBy(this.#keys.shortcuts, ([, { group }]) => group);
    return [...groups].map(([group, shortcuts]) =>
      h("section", {}, h("h3", {}, text(group)), h("dl", {}, ...rowsOf(shortcuts))),
    );
  }
}

/** One row for what is done, with all combinations that do it. */
function rowsOf(shortcuts) {
  const deeds = Map.groupBy(shortcuts, ([, { name }]) => name);
  return [...deeds].map(([name, alike]) => {
    const ways = alike.map(([combination]) =>
      h("dd", {}, ...keysOf(combination).map((key) => h("kbd", {}, key))),
    );
    return h("div", {}, h("dt", {}, text(name)), ...ways);
  });
}
