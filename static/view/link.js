/**
 * How the connection stands, said honestly: a dot beside the model's name, and a strip above the composer when
 * it is gone. It does not know what is sent.
 */

import { Connection } from "../tickwire.js";
import { text } from "../texts.js";

export class LinkView {
  #chip;
  #strip;
  #words;
  #clock = null;
  #everOpen = false;

  /** @param onretry called when the reader does not want to wait for the next try */
  constructor(chip, strip, onretry) {
    this.#chip = chip;
    this.#strip = strip;
    this.#words = strip.querySelector("p");
    strip.querySelector("button").addEventListener("click", onretry);
  }

  set model(name) {
    this.#chip.querySelector(".model").textContent = name;
  }

  show(connection) {
    const { state } = connection;
    clearInterval(this.#clock);
    this.#everOpen ||= state === Connection.OPEN;
    this.#chip.dataset.state = state;
    this.#chip.querySelector(".state").textContent = text(`link.${state}`);
    // While a new try is under way the strip stays as it is: it would only flicker.
    if (state === Connection.CONNECTING) return;
    this.#strip.hidden = state === Connection.OPEN;
    this.#say(connection);
    if (state === Connection.WAITING) this.#clock = setInterval(() => this.#say(connection), 1000);
  }

  #say({ state, retryAt, reason }) {
    const what = text(this.#everOpen ? "link.lost" : "link.unreachable");
    if (state === Connection.WAITING) {
      const left = Math.max(0, Math.ceil((retryAt - Date.now()) / 1000));
      this.#words.textContent = text("link.nextTry", what, left);
    } else if (state === Connection.REFUSED) {
      this.#words.textContent = text("link.refusedFor", reason);
    }
  }
}
