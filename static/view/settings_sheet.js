/**
 * What the settings show: how this chat is answered, and what holds for this browser. Knows what is shown, and who must
 * hear of a change; how the parts look is their own business.
 */

import { sameSetup } from "../model/setup.js";
import { text } from "../texts.js";
import { h } from "./dom.js";
import { PageSettings } from "./page_settings.js";
import { SetupForm } from "./setup_form.js";
import { Sheet } from "./sheet.js";

export class SettingsSheet {
  #preferences;
  #models;
  #sheet;
  #form;
  #page;
  #shown = "";
  #whose = h("h3");
  #scope = h("p", { class: "help" });
  #forNew = h("button", { type: "button", class: "button" }, text("setup.useForNew"));

  /**
   * @param {{preferences: Preferences, models: Models}} model
   * @param root where dialogs are
   * @param opener the button that opens and closes it
   * @param {{set(setup), useForNew(), exportAll(), removeAll()}} actions
   */
  constructor({ preferences, models }, root, opener, { set, useForNew, ...actions }) {
    this.#preferences = preferences;
    this.#models = models;
    this.#form = new SetupForm({
      onchange: set,
      onkeep: (presets) => {
        preferences.presets = presets;
      },
    });
    this.#page = new PageSettings({
      ...actions,
      setWarmUp: (on) => {
        preferences.warmUp = on;
      },
      setKey: (key) => {
        preferences.apiKey = key;
      },
    });
    this.#forNew.addEventListener("click", useForNew);
    this.#sheet = new Sheet(
      root,
      opener,
      { id: "settings", title: text("settings.title") },
      h("section", {}, this.#whose, this.#scope, this.#form.element, this.#forNew),
      h("section", {}, h("h3", {}, text("settings.browser")), this.#page.element),
    );
  }

  toggle() {
    this.#sheet.toggle();
    if (this.#sheet.isOpen) void this.#page.look();
  }

  /** Leads to the field for the key, which says what is wrong with it. */
  askForKey() {
    this.#sheet.open();
    void this.#page.look();
    this.#page.focusKey();
  }

  /** Has the field that somebody is writing in say what it holds now. */
  settle() {
    this.#sheet.settle();
  }

  /** @param conversation whose setup it is; null: that of new ones */
  show(conversation, setup) {
    const { presets, warmUp, apiKey, setup: forNew } = this.#preferences;
    const { list, refused } = this.#models;
    const all = JSON.stringify([conversation, setup, forNew, presets, warmUp, apiKey, list, refused]);
    // The list changes with every answer. A menu that is open would close, a field that is being written in be undone.
    if (all === this.#shown) return;
    this.#shown = all;
    const inChat = conversation !== null;
    this.#whose.textContent = text(inChat ? "setup.thisChat" : "setup.newChats");
    this.#scope.textContent = text(inChat ? "setup.forNextQuestion" : "setup.forNewChats");
    this.#forNew.hidden = !inChat || sameSetup(setup, forNew);
    this.#form.show(setup, this.#models, presets);
    this.#page.show({ warmUp, apiKey, refused });
  }
}
