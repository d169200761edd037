/**
 * How the connection stands, said honestly: a dot beside the model's name, and a strip above the composer when
 * it is gone. It does not know what is sent.
 */

import { wantsKey } from "../model/access.js";
import { Connection } from "../tickwire.js";
import { text } from "../texts.js";

export class LinkView {
  #chip;
  #strip;
  #words;
  #button;
  #clock = null;
  #everOpen = false;
  #wantsKey = false;

  /**
   * @param onretry called when the reader does not want to wait for the next try
   * @param onkey called when he wants to give the key that the server asks for
   */
  constructor(chip, strip, onretry, onkey) {
    this.#chip = chip;
    this.#strip = strip;
    this.#words = strip.querySelector("p");
    this.#button = strip.querySelector("button");
    this.#button.addEventListener("click", () => (this.#wantsKey ? onkey() : onretry()));
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
    this.#wantsKey = wantsKey(connection);
    this.#button.textContent = text(this.#wantsKey ? "link.enterKey" : "link.tryNow");
    this.#say(connection);
    if (state === Connection.WAITING) this.#clock = setInterval(() => this.#say(connection), 1000);
  }

  #say({ state, retryAt, reason }) {
    const what = text(this.#everOpen ? "link.lost" : "link.unreachable");
    if (state === Connection.WAITING) {
      const left = Math.max(0, Math.ceil((retryAt - Date.now()) / 1000));
      this.#words.textContent = text("link.nextTry", what, left);
    } else if (this.#wantsKey) {
      this.#words.textContent = text("settings.noKey");
    } else if (state === Connection.REFUSED) {
      this.#words.textContent = text("link.refusedFor", reason);
    }
  }
}
