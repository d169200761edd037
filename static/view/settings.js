/**
 * The settings: how this chat is answered, and what holds for this browser. Knows whose setup is shown, that of a
 * conversation or, on the empty page, that of new ones; how its parts look is their own business.
 */

import { FIRST_SETUP, sameSetup } from "../model/setup.js";
import { text } from "../texts.js";
import { h } from "./dom.js";
import { PageSettings } from "./page_settings.js";
import { presetIn, presetName } from "./preset_picker.js";
import { SetupForm } from "./setup_form.js";
import { Sheet } from "./sheet.js";

export class Settings {
  #chat;
  #preferences;
  #models;
  #conversation = null;
  #sheet;
  #form;
  #page;
  #opener;
  #shown = "";
  #whose = h("h3");
  #scope = h("p", { class: "help" });
  #forNew = h("button", { type: "button", class: "button" }, text("setup.useForNew"));

  /**
   * @param {{chat: Chat, preferences: Preferences, models: Models}} model
   * @param root where dialogs are
   * @param opener the button that opens and closes the settings; its `.preset` says which one is in use
   * @param {{exportAll(), removeAll()}} actions on all chats
   */
  constructor({ chat, preferences, models }, root, opener, actions) {
    this.#chat = chat;
    this.#preferences = preferences;
    this.#models = models;
    this.#opener = opener;
    this.#form = new SetupForm({
      onchange: (setup) => this.#set(setup),
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
    this.#forNew.addEventListener("click", () => {
      preferences.setup = this.setup;
    });
    this.#sheet = new Sheet(
      root,
      opener,
      { id: "settings", title: text("settings.title") },
      h("section", {}, this.#whose, this.#scope, this.#form.element, this.#forNew),
      h("section", {}, h("h3", {}, text("settings.browser")), this.#page.element),
    );
    opener.addEventListener("click", () => this.#look());
    chat.addEventListener("list", () => this.#show());
    preferences.addEventListener("change", () => this.#show());
    models.addEventListener("change", () => this.#show());
  }

  /** How the next question is to be answered. */
  get setup() {
    // Conversations of older pages have none.
    return this.#conversation ? (this.#chat.get(this.#conversation)?.setup ?? FIRST_SETUP) : this.#preferences.setup;
  }

  /** Shows the setup of this conversation; null: that of new ones. */
  follow(conversationId) {
    // What somebody is writing belongs to the conversation that was shown.
    this.#sheet.settle();
    this.#conversation = conversationId;
    this.#show();
  }

  toggle() {
    this.#sheet.toggle();
    this.#look();
  }

  /** Leads to the field for the key, which says what is wrong with it. */
  askForKey() {
    this.#sheet.open();
    this.#look();
    this.#page.focusKey();
  }

  #set(setup) {
    if (this.#conversation) this.#chat.setUp(this.#conversation, setup);
    else this.#preferences.setup = setup;
  }

  #look() {
    if (this.#sheet.isOpen) void this.#page.look();
  }

  #show() {
    const { setup } = this;
    const { presets, warmUp, apiKey, setup: forNew } = this.#preferences;
    const { list, refused } = this.#models;
    const all = JSON.stringify([this.#conversation, setup, forNew, presets, warmUp, apiKey, list, refused]);
    // The list changes with every answer. A menu that is open would close, a field that is being written in be undone.
    if (all === this.#shown) return;
    this.#shown = all;
    const inChat = this.#conversation !== null;
    this.#whose.textContent = text(inChat ? "setup.thisChat" : "setup.newChats");
    this.#scope.textContent = text(inChat ? "setup.forNextQuestion" : "setup.forNewChats");
    this.#forNew.hidden = !inChat || sameSetup(setup, forNew);
    this.#form.show(setup, this.#models, presets);
    this.#page.show({ warmUp, apiKey, refused });
    const name = presetName(presetIn(setup, presets));
    this.#opener.querySelector(".preset").textContent = name;
    this.#opener.setAttribute("aria-label", text("settings.open", name));
    this.#opener.title = text("settings.open", name);
  }
}
