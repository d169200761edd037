/**
 * The last ticks, and from when to when each row ran: what pictures of the engine add up to. Pure: knows pictures, not
 * how they come or are drawn.
 *
 *     tick   as in GET /debug/engine: {number, ms, rows, prefill_tokens, decode_tokens, admitted, ended, preempted,
 *            ...}
 *     stay   {id, from, to, end, lane}: the sequence ran in the ticks `from` to `to`; while it runs, `to` is null, and
 *            `from` is -Infinity where its entry was not seen. `end`: "ended" or "preempted". Stays at one time have
 *            different lanes.
 */

const KEPT = 512;

export class History {
  /** The oldest first, without gaps. */
  ticks = [];
  /** In the order in which they were heard of. */
  stays = [];

  /** Number of the last tick; 0: none was seen. */
  get last() {
    return this.ticks.at(-1)?.number ?? 0;
  }

  add({ ticks, running, stats }) {
    const before = this.last;
    const news = ticks.filter(({ number }) => number > before);
    const isGap = news.length > 0 && news[0].number > before + 1;
    if (stats.ticks < before || (isGap && before > 0)) {
      this.forget();
      this.add({ ticks, running, stats });
      return;
    }
    for (const tick of news) this.#follow(tick, before === 0);
    const ids = new Set(running.map(({ id }) => id));
    if (before === 0) for (const id of ids) if (!this.#open(id)) this.#begin(id, -Infinity);
    // Whoever had entered when the picture before this one came, and is not there any more, has left: between ticks, as
    // an answer that was stopped does.
    for (const stay of this.stays) {
      if (stay.to === null && stay.from <= before && !ids.has(stay.id)) this.#leave(stay.id, this.last, "ended");
    }
    this.#prune();
  }

  forget() {
    this.ticks = [];
    this.stays = [];
  }

  #follow(tick, isFirst) {
    this.ticks.push(tick);
    const { number, admitted, ended, preempted } = tick;
    // Who gives way does so when the tick is planned, and has no part in it.
    for (const id of preempted) this.#leave(id, number - 1, "preempted");
    for (const id of admitted) this.#begin(id, number);
    for (const id of ended) {
      if (isFirst && !this.stays.some((stay) => stay.id === id)) this.#begin(id, -Infinity);
      this.#leave(id, number, "ended");
    }
  }

  #begin(id, from) {
    // Its entry may come to be known after it was seen.
    const known = this.#open(id);
    if (known) {
      known.from = from;
      return;
    }
    const stay = { id, from, to: null, end: null, lane: 0 };
    const taken = new Set(this.stays.filter((other) => (other.to ?? Infinity) >= from).map(({ lane }) => lane));
    while (taken.has(stay.lane)) stay.lane += 1;
    this.stays.push(stay);
  }

  #leave(id, to, end) {
    const stay = this.#open(id);
    if (stay) Object.assign(stay, { to, end });
  }

  #open(id) {
    return this.stays.find((stay) => stay.id === id && stay.to === null);
  }

  #prune() {
    this.ticks.splice(0, this.ticks.length - KEPT);
    const first = this.ticks[0]?.number ?? 0;
    this.stays = this.stays.filter(({ to }) => to === null || to >= first);
  }
}
