/**
 * Which models the server has, and what each allows. Knows `GET /v1/models`; it does not know who chooses.
 *
 * Fires `change` when the server has answered.
 */

import { ServerError } from "./server.js";

export class Models extends EventTarget {
  /** Entries of `GET /v1/models`; empty until the server has told. */
  list = [];
  /** The server asks for a key, or for another one than it was shown. */
  refused = false;
  #server;
  #turn = 0;

  constructor(server) {
    super();
    this.#server = server;
  }

  /** Asks again: the server may be another one by now, or take the key that it is shown. */
  async refresh() {
    const turn = ++this.#turn;
    let { list } = this;
    let refused = false;
    try {
      list = (await this.#server.get("/v1/models")).data;
    } catch (error) {
      // Without an answer things stay as they were: the socket says by itself that the server is not there.
      if (!(error instanceof ServerError)) return;
      refused = error.status === 401;
    }
    // It was asked again meanwhile, perhaps with another key.
    if (turn !== this.#turn) return;
    Object.assign(this, { list, refused });
    this.dispatchEvent(new Event("change"));
  }

  /** The entry of a model; for null that of the server's own. undefined: the server has not told of it. */
  find(id) {
    return this.list.find((model) => id === null || model.id === id);
  }
}
