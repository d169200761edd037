/**
 * What holds for this browser: the key it shows the server, warm-ups, and what it keeps. Knows how they look; what is
 * done is told by `actions`.
 */

import { text } from "../texts.js";
import { h } from "./dom.js";
import { bytes } from "./format.js";

export class PageSettings {
  element;
  #warmUp = h("input", { type: "checkbox", role: "switch", id: "warm-up", "aria-describedby": "warm-up-help" });
  #key = h("input", {
    type: "password",
    id: "api-key",
    dir: "ltr",
    autocomplete: "off",
    spellcheck: "false",
    "aria-describedby": "api-key-problem api-key-help",
  });
  #keyProblem = h("p", { class: "problem", id: "api-key-problem", role: "status" });
  #forget = h("button", { type: "button", class: "link-button" }, text("settings.forgetKey"));
  #kept = h("p", { class: "help" });
  #persist = h("button", { type: "button", class: "button" }, text("settings.persist"));

  /** @param actions {setWarmUp(on), setKey(key), exportAll(), removeAll()} */
  constructor(actions) {
    this.#warmUp.addEventListener("change", () => actions.setWarmUp(this.#warmUp.checked));
    this.#forget.addEventListener("click", () => this.#give("", actions));
    this.#persist.addEventListener("click", () => this.#askToPersist());
    const button = (key, kind, onclick) => h("button", { type: "button", class: `button ${kind}`, onclick }, text(key));
    const use = (event) => {
      event.preventDefault();
      this.#give(this.#key.value.trim(), actions);
    };
    const key = h("form", { class: "field", onsubmit: use },
      h("label", { for: "api-key" }, text("settings.key")),
      h("div", { class: "with-button" }, this.#key, h("button", { class: "button" }, text("settings.useKey"))),
      this.#keyProblem,
      h("p", { class: "help", id: "api-key-help" }, text("settings.keyHelp")),
      this.#forget,
    );
    this.element = h(
      "div",
      {},
      h("div", { class: "field" },
        h("div", { class: "field-row" }, h("label", { for: "warm-up" }, text("settings.warmUp")), this.#warmUp),
        h("p", { class: "help", id: "warm-up-help" }, text("settings.warmUpHelp")),
      ),
      key,
      h("div", { class: "field" },
        h("h4", {}, text("settings.kept")),
        this.#kept,
        h("div", { class: "actions" },
          this.#persist,
          button("settings.exportAll", "", actions.exportAll),
          button("settings.removeAll", "quiet-danger", actions.removeAll),
        ),
      ),
    );
  }

  /** @param what {warmUp, apiKey, refused}; `refused`: the server asks for a key, or for another */
  show({ warmUp, apiKey, refused }) {
    this.#warmUp.checked = warmUp;
    if (this.#key !== document.activeElement) this.#key.value = apiKey;
    this.#forget.hidden = apiKey === "";
    const problem = refused ? text(apiKey ? "settings.wrongKey" : "settings.noKey") : "";
    this.#keyProblem.textContent = problem;
    this.#key.setAttribute("aria-invalid", String(problem !== ""));
  }

  focusKey() {
    this.#key.focus();
    this.#key.select();
  }

  /** How much is kept, and whether the browser may clear it when it runs out of room. */
  async look() {
    // There is none on a page served over plain http from another host.
    const storage = navigator.storage;
    const persisted = (await storage?.persisted()) ?? false;
    const { usage = null } = (await storage?.estimate()) ?? {};
    const words = text(persisted ? "settings.keptForGood" : "settings.keptForNow");
    this.#kept.textContent = usage === null ? words : `${text("settings.used", bytes(usage))} ${words}`;
    this.#persist.hidden = persisted || !storage;
  }

  async #askToPersist() {
    const allowed = await navigator.storage.persist();
    await this.look();
    if (!allowed) this.#kept.textContent = text("settings.notPersisted");
  }

  #give(key, actions) {
    this.#key.value = key;
    actions.setKey(key);
  }
}
