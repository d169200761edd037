/**
 * What the server tells over HTTP, asked for with this browser's key. Knows how a key is shown. It does not know
 * what is asked for.
 */

export class Server {
  #preferences;

  constructor(preferences) {
    this.#preferences = preferences;
  }

  /** Those that every request has. */
  get headers() {
    const { apiKey } = this.#preferences;
    return apiKey ? { authorization: `Bearer ${apiKey}` } : {};
  }

  /** @returns {Promise<any>} what stands there @throws {ServerError} the server refused; or it cannot be reached */
  async get(path) {
    const reply = await fetch(path, { headers: this.headers });
    if (!reply.ok) throw new ServerError(reply.status);
    return reply.json();
  }
}

export class ServerError extends Error {
  /** @param {number} status */
  constructor(status) {
    super(`the server answered with ${status}`);
    this.status = status;
  }
}
