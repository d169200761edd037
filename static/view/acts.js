/**
 * What can be done with whole chats from more than one place, a menu, a key or the settings: what is asked before, and
 * what screen readers are told after it. Knows the Chat and the dialog that asks.
 */

import { announce } from "./announce.js";
import { figure } from "./format.js";
import { text } from "../texts.js";

export class ChatActs {
  #chat;
  #removal;

  constructor(chat, removal) {
    this.#chat = chat;
    this.#removal = removal;
  }

  pin(id, pinned) {
    this.#chat.pin(id, pinned);
    announce(text(pinned ? "list.isPinned" : "list.isUnpinned"));
  }

  async remove(id) {
    const question = { title: text("removal.title"), what: this.#chat.get(id).title, words: text("removal.what") };
    if (!(await this.#removal.ask(question))) return;
    // What is said to be gone must be gone, even if the page is reloaded at once.
    await this.#chat.remove(id);
    announce(text("removal.done"));
  }

  async removeAll() {
    const count = this.#chat.list.length;
    if (!count) return;
    const title = text("settings.removal");
    const what = text("settings.removalWhat", count, figure(count));
    if (!(await this.#removal.ask({ title, what, words: text("removal.what") }))) return;
    await this.#chat.removeAll();
    announce(text("removal.done"));
  }
}
