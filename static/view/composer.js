/**
 * The box one writes in, and its button that sends or stops.
 * Knows keys, IMEs and touch keyboards. It does not know conversations: it calls `onsend(text)`, `onstop()`
 * and, for what somebody is writing, `onchange(text)`.
 */

import { text } from "../texts.js";
import { fit, isSend, touch } from "./textbox.js";

export class Composer {
  #form;
  #field;
  #button;
  #busy = false;
  #handlers;

  constructor(form, handlers) {
    this.#form = form;
    this.#field = form.querySelector("textarea");
    this.#button = form.querySelector("button");
    this.#handlers = handlers;
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.#busy) handlers.onstop();
      else this.#send();
    });
    this.#field.addEventListener("keydown", (event) => this.#key(event));
    this.#field.addEventListener("input", () => {
      this.#changed();
      handlers.onchange(this.#field.value);
    });
    this.#changed();
  }

  get text() {
    return this.#field.value;
  }

  /** Puts a draft into the box. */
  set text(text) {
    if (text === this.#field.value) return;
    this.#field.value = text;
    this.#changed();
  }

  /** While an answer runs, the button stops it and Enter sends nothing. */
  set busy(busy) {
    this.#busy = busy;
    this.#form.dataset.busy = busy ? "yes" : "no";
    const label = text(busy ? "composer.stop" : "composer.send");
    this.#button.setAttribute("aria-label", label);
    this.#button.title = text(busy ? "composer.stopKey" : "composer.sendKey");
    this.#changed();
  }

  /** Puts the cursor into the box, unless that would raise a touch keyboard nobody asked for. */
  focus() {
    if (!touch.matches) this.#field.focus();
  }

  #send() {
    const question = this.#field.value.trim();
    if (!question) return;
    this.text = "";
    this.#handlers.onsend(question);
  }

  #key(event) {
    if (!isSend(event)) return;
    event.preventDefault();
    if (!this.#busy) this.#send();
  }

  #changed() {
    this.#button.disabled = !this.#busy && this.#field.value.trim() === "";
    fit(this.#field);
  }
}
