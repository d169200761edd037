/**
 * The list of conversations, and the drawer it lies in on narrow screens.
 *
 * Knows titles, days, and which answers have not been looked at. It does not know messages: it calls `onopen(id)`,
 * `onrename(id, title)`, `onpin(id, pinned)`, `onexport(id, format)` and `onremove(id)`.
 */

import { h, iconButton } from "./dom.js";
import { dayName } from "./format.js";
import { isOfInputMethod } from "./keys.js";
import { text } from "../texts.js";

// A list of hundreds is made piece by piece, so that none of them keeps the page waiting.
const ITEMS_AT_ONCE = 60;
const narrow = matchMedia("(width < 56rem)");

/** One line of the list. It keeps its elements for as long as its conversation lives. */
class Item {
  element;
  conversation = null;
  #title = h("span", { class: "title", dir: "auto" });
  #mark;
  #open;
  #more;
  #shown = {};
  #moving = false;

  constructor(id, { onopen, onmore }) {
    this.#mark = h("i", { id: `mark-${id}`, role: "img", hidden: true });
    this.#open = h("button", { type: "button", class: "open", onclick: onopen }, this.#title, this.#mark);
    const opens = { "aria-haspopup": "menu", "aria-expanded": "false", onclick: () => onmore(this.#more) };
    this.#more = iconButton("more", "", opens);
    this.element = h("li", { "data-id": id }, this.#open, this.#more);
    this.reachable = false;
  }

  /** Shows what has changed: {title, current, mark}, `mark` being "live", "unread" or null. */
  show({ title, current, mark }) {
    if (title !== this.#shown.title) {
      this.#title.textContent = title;
      this.#open.title = title;
      this.#open.setAttribute("aria-label", title);
      this.#more.title = text("list.more");
      this.#more.setAttribute("aria-label", text("list.moreOf", title));
    }
    if (current !== this.#shown.current) {
      this.element.classList.toggle("current", current);
      if (current) this.#open.setAttribute("aria-current", "true");
      else this.#open.removeAttribute("aria-current");
    }
    if (mark !== this.#shown.mark) {
      this.#mark.hidden = mark === null;
      this.#mark.className = mark ?? "";
      if (mark) this.#mark.setAttribute("aria-label", text(`list.${mark}`));
      if (mark) this.#open.setAttribute("aria-describedby", this.#mark.id);
      else this.#open.removeAttribute("aria-describedby");
    }
    this.#shown = { title, current, mark };
  }

  /** Whether Tab stops here; in a long list it does so once. */
  set reachable(reachable) {
    this.#open.tabIndex = reachable ? 0 : -1;
    this.#more.tabIndex = reachable ? 0 : -1;
  }

  focus() {
    this.#open.focus();
  }

  /** Puts the element elsewhere; a title that is being written there is neither kept nor given up by that. */
  move(act) {
    const focused = this.element.contains(document.activeElement) ? document.activeElement : null;
    this.#moving = true;
    act();
    focused?.focus({ preventScroll: true });
    this.#moving = false;
  }

  /** Lets the title be written in place; `onend(title)` gets null when it is to stay. */
  rename(onend) {
    const label = { "aria-label": text("list.newTitle") };
    const field = h("input", { class: "rename", type: "text", dir: "auto", maxlength: "200", ...label });
    field.value = this.#shown.title;
    const end = (title, focus) => {
      if (!field.isConnected) return;
      this.#moving = true;
      field.replaceWith(this.#open);
      this.#moving = false;
      if (focus) this.#open.focus();
      onend(title && title !== this.#shown.title ? title : null);
    };
    field.addEventListener("keydown", (event) => {
      if (isOfInputMethod(event) || !["Enter", "Escape"].includes(event.key)) return;
      event.preventDefault();
      end(event.key === "Enter" ? field.value.trim() : null, true);
    });
    field.addEventListener("blur", () => this.#moving || end(field.value.trim(), false));
    this.#open.replaceWith(field);
    field.select();
    field.focus();
  }
}

export class Sidebar {
  #root;
  #list;
  #opener;
  #menu;
  #handlers;
  #items = new Map();
  #sections = new Map();
  #unread = new Set();
  #wanted = { conversations: [], currentId: null, isBusy: () => false };
  #rest = null;
  #stop = null;

  /** @param menu a Menu, for what can be done with one conversation */
  constructor(root, list, opener, menu, handlers) {
    this.#root = root;
    this.#list = list;
    this.#opener = opener;
    this.#menu = menu;
    this.#handlers = handlers;
    opener.addEventListener("click", () => this.toggle());
    document.querySelector("#scrim").addEventListener("click", () => this.close());
    narrow.addEventListener("change", () => this.#unfold());
    list.addEventListener("keydown", (event) => this.#key(event));
    list.addEventListener("focusin", ({ target }) => this.#stopAt(target.closest("li").dataset.id));
  }

  get isOpen() {
    return document.body.dataset.drawer === "open";
  }

  /** Shows or hides it; while it lies over the page as a drawer, nothing behind it can be reached. */
  toggle() {
    if (!narrow.matches) return this.#fold();
    document.body.dataset.drawer = this.isOpen ? "closed" : "open";
    this.#opener.setAttribute("aria-expanded", String(this.isOpen));
    document.querySelector("main").inert = this.isOpen;
    if (this.isOpen) this.#root.querySelector("button").focus();
  }

  /** The page became narrow or wide: what one of them hides, the other must not miss. */
  #unfold() {
    document.body.dataset.drawer = "closed";
    document.body.dataset.sidebar = "shown";
    this.#opener.setAttribute("aria-expanded", "false");
    document.querySelector("main").inert = false;
  }

  /** Closes the drawer; on wide screens, where the list always shows, nothing happens. */
  close() {
    if (!this.isOpen) return;
    this.toggle();
    this.#opener.focus();
  }

  #fold() {
    const { dataset } = document.body;
    dataset.sidebar = dataset.sidebar === "hidden" ? "shown" : "hidden";
    this.#opener.setAttribute("aria-expanded", String(dataset.sidebar === "shown"));
  }

  /** Marks a conversation whose answer ended while it was not on screen; looking at it takes the mark away. */
  markUnread(id) {
    this.#unread.add(id);
  }

  /** @param isBusy tells for a conversation's id whether an answer runs there */
  show(conversations, currentId, isBusy) {
    this.#unread.delete(currentId);
    this.#wanted = { conversations, currentId, isBusy };
    this.#removeGone();
    this.#render();
  }

  #render() {
    clearTimeout(this.#rest);
    const { conversations, currentId } = this.#wanted;
    const groups = new Map();
    let room = ITEMS_AT_ONCE;
    for (const conversation of conversations) {
      if (!this.#items.has(conversation.id) && room-- === 0) {
        this.#rest = setTimeout(() => this.#render());
        break;
      }
      const name = conversation.pinned ? text("list.pinned") : dayName(conversation.updated);
      if (!groups.has(name)) groups.set(name, []);
      groups.get(name).push(this.#item(conversation));
    }
    this.#arrange(groups);
    this.#stopAt(this.#items.has(this.#stop) ? this.#stop : currentId);
  }

  #item(conversation) {
    const { id, title } = conversation;
    const { currentId, isBusy } = this.#wanted;
    if (!this.#items.has(id)) {
      const onopen = () => this.#handlers.onopen(id);
      this.#items.set(id, new Item(id, { onopen, onmore: (button) => this.#menu.toggle(button, this.#entries(id)) }));
    }
    const item = this.#items.get(id);
    item.conversation = conversation;
    item.show({ title, current: id === currentId, mark: isBusy(id) ? "live" : this.#unread.has(id) ? "unread" : null });
    return item;
  }

  #entries(id) {
    const { onpin, onexport, onremove } = this.#handlers;
    const { pinned } = this.#items.get(id).conversation;
    return [
      { icon: "pencil", text: text("list.rename"), act: () => this.rename(id) },
      { icon: "pin", text: text(pinned ? "list.unpin" : "list.pin"), act: () => onpin(id, !pinned) },
      { icon: "download", text: text("list.markdown"), act: () => onexport(id, "markdown") },
      { icon: "download", text: text("list.json"), act: () => onexport(id, "json") },
      { icon: "trash", text: text("list.remove"), act: () => onremove(id), danger: true },
    ];
  }

  /** Lets a conversation's title be written in its place in the list, which shows for that. */
  rename(id) {
    const isShown = narrow.matches ? this.isOpen : document.body.dataset.sidebar !== "hidden";
    if (!isShown) this.toggle();
    this.#items.get(id).rename((title) => title && this.#handlers.onrename(id, title));
  }

  /** Puts groups and items in order; what stands where it should is left alone. */
  #arrange(groups) {
    for (const [name, section] of this.#sections) {
      if (groups.has(name)) continue;
      section.remove();
      this.#sections.delete(name);
    }
    for (const name of groups.keys()) if (!this.#sections.has(name)) this.#sections.set(name, groupElement(name));
    inOrder(this.#list, [...groups.keys()].map((name) => this.#sections.get(name)));
    for (const [name, items] of groups) {
      const elements = items.map(({ element }) => element);
      inOrder(this.#sections.get(name).lastElementChild, elements, (i, act) => items[i].move(act));
    }
  }

  #removeGone() {
    const ids = new Set(this.#wanted.conversations.map(({ id }) => id));
    for (const [id, { element }] of this.#items) {
      if (ids.has(id)) continue;
      const hadFocus = element.contains(document.activeElement);
      const next = element.nextElementSibling ?? element.previousElementSibling;
      element.remove();
      this.#items.delete(id);
      this.#unread.delete(id);
      if (hadFocus) this.#items.get(next?.dataset.id)?.focus();
    }
  }

  #stopAt(id) {
    const stop = this.#items.has(id) ? id : (this.#list.querySelector("li")?.dataset.id ?? null);
    if (stop !== this.#stop) {
      const before = this.#items.get(this.#stop);
      if (before) before.reachable = false;
    }
    this.#stop = stop;
    if (stop) this.#items.get(stop).reachable = true;
  }

  #key(event) {
    if (event.target.matches("input")) return;
    const id = event.target.closest("li").dataset.id;
    const lines = [...this.#list.querySelectorAll("li")];
    const at = lines.findIndex(({ dataset }) => dataset.id === id);
    const go = (line) => line && this.#items.get(line.dataset.id).focus();
    const keys = {
      ArrowDown: () => go(lines[at + 1]),
      ArrowUp: () => go(lines[at - 1]),
      Home: () => go(lines[0]),
      End: () => go(lines.at(-1)),
      F2: () => this.rename(id),
      Delete: () => this.#handlers.onremove(id),
    };
    if (event.ctrlKey || event.metaKey || event.altKey || !Object.hasOwn(keys, event.key)) return;
    event.preventDefault();
    keys[event.key]();
  }
}

function groupElement(name) {
  return h("section", {}, h("h2", {}, name), h("ul", { role: "list" }));
}

/** Makes these the children of a parent, in this order; `move(index, act)` is told of each that changes its place. */
function inOrder(parent, elements, move = (_, act) => act()) {
  const wanted = new Set(elements);
  let at = parent.firstElementChild;
  elements.forEach((element, i) => {
    while (at && !wanted.has(at)) at = at.nextElementSibling;
    if (element === at) at = at.nextElementSibling;
    else move(i, () => parent.insertBefore(element, at));
  });
  for (const child of [...parent.children]) if (!wanted.has(child)) child.remove();
}
