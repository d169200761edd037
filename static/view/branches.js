/**
 * The picker of a message that others stand beside: ‹ 2/3 ›. Knows a place among siblings, not what they say: it
 * calls `onstep(-1)` or `onstep(1)`.
 */

import { h, iconButton } from "./dom.js";
import { figure } from "./format.js";
import { text } from "../texts.js";

export class BranchPicker {
  element;
  /** Which one it is, in words. */
  place = "";
  #role;
  #count = h("span", { "aria-hidden": "true" });
  #buttons;
  #index = 0;
  #length = 1;

  /** @param {"question" | "answer"} role what is picked */
  constructor(role, onstep) {
    this.#role = role;
    const button = (name, step) =>
      iconButton(name, text(`branches.${name}.${role}`), { onclick: () => this.#leadsTo(step) && onstep(step) });
    this.#buttons = { [-1]: button("previous", -1), [1]: button("next", 1) };
    const parts = [this.#buttons[-1], this.#count, this.#buttons[1]];
    this.element = h("div", { class: "picker", role: "group", hidden: true }, ...parts);
  }

  /** The message is the one at `index` of so many. */
  show(index, length) {
    this.#index = index;
    this.#length = length;
    this.element.hidden = length < 2;
    this.#count.textContent = text("branches.short", figure(index + 1), figure(length));
    this.place = text(`branches.${this.#role}`, figure(index + 1), figure(length));
    this.element.setAttribute("aria-label", this.place);
    // A button that is disabled loses the focus, and with it a keyboard user his place.
    for (const step of [-1, 1]) this.#buttons[step].setAttribute("aria-disabled", String(!this.#leadsTo(step)));
  }

  focus(step) {
    this.#buttons[step].focus({ preventScroll: true });
  }

  #leadsTo(step) {
    return this.#index + step >= 0 && this.#index + step < this.#length;
  }
}
