/**
 * Shows the server this browser's key, on the socket and over HTTP, and tells when it wants another one.
 *
 * Fires `wanted` when the server has refused what it was shown, or that it was shown nothing.
 */

import { Connection } from "../tickwire.js";

/** Close codes: no key or a wrong one; none in time. */
const NO_KEY = [4401, 4408];

/** Whether a connection was refused for want of a key. */
export function wantsKey({ state, code }) {
  return state === Connection.REFUSED && NO_KEY.includes(code);
}

export class Access extends EventTarget {
  #wire;
  #models;
  #preferences;
  #shown;

  constructor(wire, models, preferences) {
    super();
    this.#wire = wire;
    this.#models = models;
    this.#preferences = preferences;
    this.#shown = preferences.apiKey;
    preferences.addEventListener("change", () => this.#show());
    wire.addEventListener("connection", () => this.#look());
    models.addEventListener("change", () => models.refused && this.dispatchEvent(new Event("wanted")));
    this.#look();
  }

  #show() {
    const { apiKey } = this.#preferences;
    if (apiKey === this.#shown) return;
    this.#shown = apiKey;
    this.#wire.authenticate(apiKey);
    void this.#models.refresh();
  }

  #look() {
    const { connection } = this.#wire;
    // Over HTTP the server says at once what the socket says by its close, or when its patience ends.
    if (connection.state === Connection.OPEN || wantsKey(connection)) void this.#models.refresh();
  }
}
