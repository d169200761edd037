/**
 * The list of conversations, and the drawer it lies in on narrow screens.
 * Knows titles and days. It does not know messages: it calls `onopen(id)` and `onremove(id)`.
 */

import { h, iconButton } from "./dom.js";
import { dayName } from "./format.js";
import { text } from "../texts.js";

export class Sidebar {
  #root;
  #list;
  #opener;
  #handlers;

  constructor(root, list, opener, handlers) {
    this.#root = root;
    this.#list = list;
    this.#opener = opener;
    this.#handlers = handlers;
    opener.addEventListener("click", () => this.toggle());
    document.querySelector("#scrim").addEventListener("click", () => this.close());
  }

  get isOpen() {
    return document.body.dataset.drawer === "open";
  }

  toggle() {
    document.body.dataset.drawer = this.isOpen ? "closed" : "open";
    this.#opener.setAttribute("aria-expanded", String(this.isOpen));
    if (this.isOpen) this.#root.querySelector("button").focus();
  }

  /** Closes the drawer; on wide screens, where the list always shows, nothing happens. */
  close() {
    if (!this.isOpen) return;
    this.toggle();
    this.#opener.focus();
  }

  /** @param isBusy tells for a conversation's id whether an answer runs there */
  show(conversations, currentId, isBusy) {
    const groups = new Map();
    for (const conversation of conversations) {
      const day = dayName(conversation.updated);
      if (!groups.has(day)) groups.set(day, []);
      groups.get(day).push(this.#item(conversation, conversation.id === currentId, isBusy(conversation.id)));
    }
    this.#list.replaceChildren(
      ...[...groups].map(([day, items]) => h("section", {}, h("h2", {}, day), h("ul", { role: "list" }, ...items))),
    );
  }

  #item({ id, title }, current, busy) {
    const open = h(
      "button",
      { type: "button", class: "open", "aria-current": current && "true", dir: "auto", title, onclick: () => this.#handlers.onopen(id) },
      h("span", {}, title),
      busy ? h("i", { class: "live", role: "img", "aria-label": text("list.answering") }) : null,
    );
    const remove = iconButton("trash", text("list.remove", title), { onclick: () => this.#handlers.onremove(id) });
    return h("li", { class: current && "current" }, open, remove);
  }
}
