/**
 * Asks the server for pictures of its engine, again and again, one at a time.
 *
 * Knows the address, the pace, and that nobody looks while the tab is hidden. It does not know what is in a picture,
 * but for the ticks: each picture brings those since the one before it.
 *
 *     picture   detail: what GET /debug/engine says, with `ticks`
 *     away      there was none; detail: why, in words, or "" where the server cannot be reached
 */

import { text } from "../texts.js";

const EVERY_MS = 250;
const AGAIN_MS = 2000;
// An engine answers between two ticks, and a tick may be a long one.
const ANSWER_MS = 15_000;

export class Feed extends EventTarget {
  #headers;
  #run = null;
  #asking = null;
  #timer;
  /** Number of the last tick that was told. */
  #after = 0;

  /** @param headers () => what requests must say, as an API key */
  constructor(headers) {
    super();
    this.#headers = headers;
  }

  start() {
    if (this.#run) return;
    this.#run = new AbortController();
    document.addEventListener("visibilitychange", () => this.#go(), { signal: this.#run.signal });
    this.#go();
  }

  stop() {
    clearTimeout(this.#timer);
    this.#run?.abort();
    this.#run = null;
  }

  #go() {
    clearTimeout(this.#timer);
    if (!document.hidden && this.#asking !== this.#run) void this.#ask(this.#run);
  }

  async #ask(run) {
    this.#asking = run;
    const begun = performance.now();
    const found = await this.#fetch(run.signal);
    if (this.#asking === run) this.#asking = null;
    if (run.signal.aborted) return;
    this.#after = found.picture ? lastOf(found.picture, this.#after) : 0;
    if (found.picture) this.#fire("picture", found.picture);
    else this.#fire("away", found.reason);
    const wait = found.picture ? EVERY_MS - (performance.now() - begun) : AGAIN_MS;
    this.#timer = setTimeout(() => this.#go(), Math.max(wait, 0));
  }

  /** {picture}, or {reason} where there is none. */
  async #fetch(signal) {
    try {
      const limits = AbortSignal.any([signal, AbortSignal.timeout(ANSWER_MS)]);
      const reply = await fetch(`/debug/engine?after=${this.#after}`, { headers: this.#headers(), signal: limits });
      return reply.ok ? { picture: await reply.json() } : { reason: text("engine.refused", reply.status) };
    } catch {
      return { reason: "" };
    }
  }

  #fire(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }
}

/** A server that was started anew counts its ticks from the beginning. */
function lastOf({ ticks, stats }, before) {
  return stats.ticks < before ? 0 : (ticks.at(-1)?.number ?? before);
}
