/**
 * The settings: which setup is in use, and the way to the sheet where it is changed, which is loaded when it is opened
 * for the first time. Knows whose setup that is: a conversation's or, on the empty page, that of new ones.
 */

import { FIRST_SETUP, presetIn } from "../model/setup.js";
import { text } from "../texts.js";
import { Door } from "./door.js";
import { presetName } from "./format.js";

export class Settings {
  #chat;
  #preferences;
  #conversation = null;
  #door;
  #sheet = null;
  #opener;

  /**
   * @param {{chat: Chat, preferences: Preferences, models: Models}} model
   * @param root where dialogs are
   * @param opener the button that opens and closes the settings; its `.preset` says which one is in use
   * @param {{exportAll(), removeAll(), ontrouble()}} actions on all chats; and what to do when the sheet was not loaded
   */
  constructor({ chat, preferences, models }, root, opener, { ontrouble, ...actions }) {
    this.#chat = chat;
    this.#preferences = preferences;
    this.#opener = opener;
    const all = {
      ...actions,
      set: (setup) => this.#set(setup),
      useForNew: () => {
        preferences.setup = this.setup;
      },
    };
    this.#door = new Door({
      load: () => import("./settings_sheet.js"),
      styles: "/static/styles/settings.css",
      make: ({ SettingsSheet }) => {
        this.#sheet = new SettingsSheet({ preferences, models }, root, opener, all);
        this.#show();
        return this.#sheet;
      },
      ontrouble,
    });
    this.#door.expect(opener);
    opener.addEventListener("click", () => this.toggle());
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
    this.#sheet?.settle();
    this.#conversation = conversationId;
    this.#show();
  }

  toggle() {
    void this.#door.open((sheet) => sheet.toggle());
  }

  /** Leads to the field for the key, which says what is wrong with it. */
  askForKey() {
    void this.#door.open((sheet) => sheet.askForKey());
  }

  #set(setup) {
    if (this.#conversation) this.#chat.setUp(this.#conversation, setup);
    else this.#preferences.setup = setup;
  }

  #show() {
    const { setup } = this;
    const name = presetName(presetIn(setup, this.#preferences.presets));
    this.#opener.querySelector(".preset").textContent = name;
    this.#opener.setAttribute("aria-label", text("settings.open", name));
    this.#opener.title = text("settings.open", name);
    this.#sheet?.show(this.#conversation, setup);
  }
}
