/**
 * The search over all chats, in a dialog: what was found, as one types. Knows hits and keys; where they come from, and
 * how one is opened, is told to it. What it read lasts as long as the dialog is open.
 */

import { h } from "./dom.js";
import { dayName, figure } from "./format.js";
import { marked, Search, snippet, wordsOf } from "../model/search.js";
import { isOfInputMethod } from "./keys.js";
import { text } from "../texts.js";

const MOST = 60;
const POINT_MS = 2400;

export class SearchDialog {
  #dialog;
  #field;
  #list;
  #state;
  #chat;
  #onopen;
  #search = null;
  #complete = false;
  #hits = [];
  #active = 0;
  #frame = null;

  /**
   * @param parts {dialog, field, list, state}, as search_door.js has made them
   * @param chat the Chat that is searched
   * @param onopen shows a conversation, by its id, at the message that was found or null; resolves to the message's
   *   element where it shows one
   */
  constructor({ dialog, field, list, state }, chat, onopen) {
    this.#dialog = dialog;
    this.#field = field;
    this.#list = list;
    this.#state = state;
    this.#chat = chat;
    this.#onopen = onopen;
    field.addEventListener("input", () => this.#changed());
    field.addEventListener("keydown", (event) => this.#key(event));
    dialog.addEventListener("close", () => this.#forget());
  }

  /** The dialog was opened. */
  async begin() {
    const search = new Search(this.#chat.list);
    this.#search = search;
    void this.#find();
    const everything = await this.#chat.everything();
    await search.add(everything);
    if (this.#search !== search) return;
    this.#complete = true;
    void this.#find();
  }

  #forget() {
    cancelAnimationFrame(this.#frame);
    this.#search = null;
    this.#complete = false;
    this.#hits = [];
    this.#list.replaceChildren();
    this.#state.textContent = "";
  }

  #changed() {
    cancelAnimationFrame(this.#frame);
    this.#frame = requestAnimationFrame(() => this.#find());
  }

  async #find() {
    const words = wordsOf(this.#field.value);
    const hits = await this.#search.find(this.#field.value);
    if (hits === null || !this.#dialog.open) return;
    this.#hits = hits.slice(0, MOST);
    this.#list.replaceChildren(...this.#hits.map((hit, i) => this.#option(hit, i, words)));
    this.#list.scrollTop = 0;
    this.#choose(0);
    this.#state.textContent = words.length ? this.#told(hits.length) : "";
  }

  #told(count) {
    if (!this.#complete) return text("search.reading");
    if (count === 0) return text("search.none");
    return count > MOST ? text("search.some", figure(MOST), figure(count)) : text("search.found", count, figure(count));
  }

  #option({ conversation, message }, i, words) {
    const title = h("span", { class: "title", dir: "auto" }, ...elementsOf(marked(conversation.title, words)));
    const day = h("span", { class: "day" }, dayName((message ?? { created: conversation.updated }).created));
    const lines = [h("div", { class: "head" }, title, day)];
    if (message) {
      const who = h("b", {}, text(message.role === "user" ? "search.you" : "search.answer"));
      lines.push(h("p", {}, who, " ", h("bdi", {}, ...elementsOf(snippet(message.text, words)))));
    }
    const attributes = { role: "option", id: `hit-${i}`, "aria-selected": "false", onclick: () => this.#go(i) };
    return h("li", { ...attributes, onpointermove: () => this.#choose(i) }, ...lines);
  }

  #choose(index) {
    const options = this.#list.children;
    options[this.#active]?.setAttribute("aria-selected", "false");
    this.#active = index;
    const option = options[index];
    if (!option) return this.#field.removeAttribute("aria-activedescendant");
    option.setAttribute("aria-selected", "true");
    option.scrollIntoView({ block: "nearest" });
    this.#field.setAttribute("aria-activedescendant", option.id);
  }

  #key(event) {
    if (isOfInputMethod(event)) return;
    const count = this.#hits.length;
    const keys = {
      ArrowDown: () => this.#choose((this.#active + 1) % count),
      ArrowUp: () => this.#choose((this.#active + count - 1) % count),
      Enter: () => this.#go(this.#active),
    };
    if (!count || !Object.hasOwn(keys, event.key)) return;
    event.preventDefault();
    keys[event.key]();
  }

  async #go(index) {
    const { conversation, message } = this.#hits[index];
    this.#dialog.close();
    const element = await this.#onopen(conversation.id, message);
    if (element) point(element);
  }
}

function elementsOf(pieces) {
  return pieces.map(({ text: words, found }) => (found ? h("mark", {}, words) : words));
}

/** Brings an element into view, and marks it for a moment. */
function point(element) {
  element.scrollIntoView({ block: "center" });
  element.classList.add("found");
  setTimeout(() => element.classList.remove("found"), POINT_MS);
}
