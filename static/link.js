/**
 * How the connection stands, said honestly: a dot beside the model's name, and a strip above the composer when
 * it is gone. Knows words for states. It does not know what is sent.
 */

import { Connection } from "./tickwire.js";

const WORDS = {
  [Connection.CONNECTING]: "Connecting",
  [Connection.OPEN]: "Connected",
  [Connection.WAITING]: "Not connected",
  [Connection.REFUSED]: "Refused",
  [Connection.CLOSED]: "Closed",
};

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
    this.#chip.querySelector(".state").textContent = WORDS[state];
    // While a new try is under way the strip stays as it is: it would only flicker.
    if (state === Connection.CONNECTING) return;
    this.#strip.hidden = state === Connection.OPEN;
    this.#say(connection);
    if (state === Connection.WAITING) this.#clock = setInterval(() => this.#say(connection), 1000);
  }

  #say({ state, retryAt, reason }) {
    const what = this.#everOpen ? "The connection is lost." : "The server cannot be reached.";
    if (state === Connection.WAITING) {
      const left = Math.max(0, Math.ceil((retryAt - Date.now()) / 1000));
      this.#words.textContent = left > 0 ? `${what} Next try in ${left} s.` : `${what} Trying again.`;
    } else if (state === Connection.REFUSED) {
      this.#words.textContent = `The server refused the connection${reason ? `: ${reason}` : "."}`;
    }
  }
}
