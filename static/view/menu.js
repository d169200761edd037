/**
 * A small menu that hangs on a button. Knows keys, focus and where there is room; what an entry does is told to it.
 * One menu serves all buttons of the page: only one can be open.
 */

import { h, icon } from "./dom.js";

const GAP_PX = 4;

export class Menu {
  #element = h("div", { class: "menu", role: "menu", id: "menu-of-button", popover: "manual" });
  #opener = null;

  constructor() {
    this.#element.addEventListener("keydown", (event) => this.#key(event));
    addEventListener("pointerdown", ({ target }) => {
      if (!this.#element.contains(target) && !this.#opener?.contains(target)) this.close();
    });
    // It is placed once, where its button was then; what scrolls elsewhere does not move that.
    addEventListener("resize", () => this.close());
    const onscroll = ({ target }) => target.contains(this.#opener) && this.close();
    addEventListener("scroll", onscroll, { capture: true, passive: true });
  }

  get isOpen() {
    return this.#opener !== null;
  }

  /**
   * Opens it at a button, or closes it if it hangs on that one.
   * @param {HTMLElement} button has `aria-haspopup="menu"` and `aria-expanded`
   * @param {{icon: string, text: string, act: () => void, danger?: boolean}[]} entries
   */
  toggle(button, entries) {
    if (this.#opener === button) return this.close({ focus: true });
    this.close();
    this.#opener = button;
    button.setAttribute("aria-expanded", "true");
    button.setAttribute("aria-controls", this.#element.id);
    this.#element.setAttribute("aria-label", button.getAttribute("aria-label"));
    this.#element.replaceChildren(...entries.map((entry) => this.#entry(entry)));
    // Wherever it lies, it is shown on top of all; here it belongs to a landmark, and comes after its button.
    button.closest("aside, main").append(this.#element);
    this.#element.showPopover();
    this.#place();
    this.#element.firstElementChild.focus();
  }

  close({ focus = false } = {}) {
    const opener = this.#opener;
    if (!opener) return;
    this.#opener = null;
    this.#element.hidePopover();
    opener.setAttribute("aria-expanded", "false");
    opener.removeAttribute("aria-controls");
    if (focus) opener.focus();
  }

  #entry({ icon: name, text, act, danger = false }) {
    const onclick = () => {
      this.close({ focus: true });
      act();
    };
    const attributes = { type: "button", role: "menuitem", tabindex: "-1", class: danger && "danger", onclick };
    return h("button", attributes, icon(name), h("span", {}, text));
  }

  /** Below the button, its end at the button's end; above it where there is no room. */
  #place() {
    const button = this.#opener.getBoundingClientRect();
    const { width, height } = this.#element.getBoundingClientRect();
    const rtl = getComputedStyle(this.#opener).direction === "rtl";
    const x = Math.max(GAP_PX, Math.min(rtl ? button.x : button.x + button.width - width, innerWidth - width - GAP_PX));
    const below = button.y + button.height + GAP_PX;
    const y = below + height + GAP_PX <= innerHeight ? below : Math.max(GAP_PX, button.y - height - GAP_PX);
    this.#element.style.translate = `${Math.round(x)}px ${Math.round(y)}px`;
  }

  #key(event) {
    const entries = [...this.#element.children];
    const at = entries.indexOf(document.activeElement);
    const go = (index) => entries.at(index % entries.length).focus();
    const keys = {
      ArrowDown: () => go(at + 1),
      ArrowUp: () => go(at - 1),
      Home: () => go(0),
      End: () => go(-1),
      Escape: () => this.close({ focus: true }),
    };
    if (event.key === "Tab") {
      // The browser goes on from the button.
      this.close({ focus: true });
    } else if (Object.hasOwn(keys, event.key)) {
      event.preventDefault();
      keys[event.key]();
    } else if (event.key.length === 1) {
      this.#startingWith(event.key, [...entries.slice(at + 1), ...entries.slice(0, at + 1)])?.focus();
    }
  }

  #startingWith(letter, entries) {
    return entries.find(({ textContent }) => textContent.toLocaleLowerCase().startsWith(letter.toLocaleLowerCase()));
  }
}
