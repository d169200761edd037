/**
 * The socket client: many answers at once over one WebSocket that speaks the OpenAI Responses WebSocket mode with
 * Tickwire's additions. It comes back by itself after a cut, and whoever reads an answer notices nothing.
 *
 * Knows the wire: frames, lanes, numbers of events, close codes, when to come back. It does not know the page:
 * no DOM, no storage, no dependencies. Runs in browsers, workers and Node 22 and later (older: pass the
 * `WebSocket` class of the `ws` package).
 *
 *     const wire = new Tickwire("ws://127.0.0.1:8000/v1/responses");
 *     const answer = wire.respond({ input: "Hello" });
 *     for await (const text of answer) process.stdout.write(text);
 *     const { status, usage } = await answer.ended;
 *
 * After a cut each answer is taken up at the number of its last event, so each event counts once. A request whose
 * response was not heard of yet is sent again: the server may then compute two, but only the second is ever read.
 */

/**
 * The fields of `response.create`.
 * @typedef {{input?: string | Array<{role: string, content: string}>, model?: string, instructions?: string,
 *   previous_response_id?: string, max_output_tokens?: number, temperature?: number, top_p?: number,
 *   [field: string]: unknown}} ResponseRequest
 */
/** @typedef {{type?: string, code?: string, message: string, param?: string | null}} WireError */
/** @typedef {{input_tokens: number, output_tokens: number, total_tokens: number, [field: string]: unknown}} Usage */
/**
 * How the server sees an answer that runs.
 * @typedef {{status: "queued" | "prefilling" | "generating" | "ended", queue_position: number | null,
 *   output_tokens: number, tokens_per_s: number | null, [field: string]: unknown}} Stats
 */
/**
 * `retryAt` in milliseconds since 1970; `code` and `reason` are those of the last close.
 * @typedef {{state: ConnectionState, retryAt: number | null, code: number | null, reason: string}} ConnectionDetail
 */
/** @typedef {(typeof Connection)[keyof typeof Connection]} ConnectionState */
/** @typedef {(typeof Status)[keyof typeof Status]} AnswerStatus */

/** How a connection stands. `waiting`: a new try is due. `refused`: the server said not to come back. */
export const Connection = Object.freeze({
  CONNECTING: "connecting",
  OPEN: "open",
  WAITING: "waiting",
  REFUSED: "refused",
  CLOSED: "closed",
});

/** How an answer stands; every one but the first three is final. */
export const Status = Object.freeze({
  QUEUED: "queued", // not sent yet: the socket is not open
  SENT: "sent", // sent, no text yet
  STREAMING: "streaming",
  COMPLETED: "completed",
  LENGTH: "length", // cut by the token limit
  STOPPED: "stopped", // by stop(), here or by another reader
  STEERED: "steered", // by steer(): its successor goes on
  FAILED: "failed", // the server said so; see `error`
  INTERRUPTED: "interrupted", // the rest cannot be had any more; see `error`
});

/** @type {Set<AnswerStatus>} */
const RUNNING = new Set([Status.QUEUED, Status.SENT, Status.STREAMING]);

const LONGEST_RETRY_MS = 8000;
// A connection that lived this long, or brought something new, was a good one: the next loss starts from the
// shortest delay again.
const GOOD_CONNECTION_MS = 5000;
const OPEN_WITHIN_MS = 15000;
const PONG_WITHIN_MS = 2000;
// What servers allow a connection; more waits here.
const MAX_LANES = 32;
// A request that the connection dies of every time must not kill it for ever.
const MAX_SENDS = 3;
const FINAL_CLOSES = new Set([1002, 1003, 1007, 1008, 1009, 1010]);

/** How far the message that steers a response has come. */
const Steer = Object.freeze({ UNSENT: 0, SENT: 1, LOST: 2 });
// The message and the end of the response crossed.
const TOO_LATE = new Set(["response_already_completed", "response_not_active"]);

/** @param {number} code @returns {boolean} whether the close code alone tells a client to stay away. */
export function isFinalClose(code) {
  return FINAL_CLOSES.has(code) || (code >= 4400 && code < 4500 && code !== 4429);
}

/**
 * One answer. Iterating gives its text in pieces as they come; a reader that pulls late gets one bigger piece.
 * Any number of readers may iterate, each from the beginning. Fires `state` when `status` or `responseId` changed.
 */
export class Answer extends EventTarget {
  #wake = [];
  #resolve;
  #acts;

  /** @internal Made by `Tickwire`. */
  constructor(request, acts, { responseId = null, after = -1 } = {}) {
    super();
    /** @type {ResponseRequest} */
    this.request = request;
    this.text = "";
    /** @type {AnswerStatus} */
    this.status = Status.QUEUED;
    /** @type {WireError | null} */
    this.error = null;
    /** @type {Usage | null} The server's token counts, once it has ended. */
    this.usage = null;
    /** @type {string | null} With it and `sequence`, `Tickwire.resume` takes the answer up, from anywhere. */
    this.responseId = responseId;
    /** @type {number} Number of the last event that is part of `text`; -1: none yet. */
    this.sequence = after;
    /** @type {string | null} */
    this.model = null;
    /**
     * Milliseconds of `performance.now()`: when the request first went out, its first and its last text came.
     * @type {{sent: number | null, first: number | null, last: number | null}}
     */
    this.times = { sent: null, first: null, last: null };
    this.stopRequested = false;
    /** @type {Promise<Answer>} Resolves with this answer when it is final; never rejects. */
    this.ended = new Promise((resolve) => {
      this.#resolve = resolve;
    });
    this.#acts = acts;
  }

  get isFinal() {
    return !RUNNING.has(this.status);
  }

  /**
   * Asks the server to stop. The text so far stays. `ended` resolves when the server has said so; at once, where
   * it cannot be reached: then it is told as soon as it can.
   */
  stop() {
    if (!this.isFinal && !this.stopRequested) {
      this.stopRequested = true;
      this.#acts.stop();
    }
  }

  /**
   * Says something more while the answer runs: it ends, and the successor goes on from its text and the message.
   * If it has ended by then, the successor is the next turn.
   * @param {string | Array<{role: string, content: string}>} input
   * @returns {Answer} the successor
   */
  steer(input) {
    return this.#acts.steer(input);
  }

  /** @returns {Promise<Stats | null>} how the server sees it; null if it cannot be asked, or has ended. */
  stats() {
    return this.#acts.stats();
  }

  /** @returns {AsyncGenerator<string, void, void>} */
  async *[Symbol.asyncIterator]() {
    let read = 0;
    while (true) {
      if (read < this.text.length) {
        const piece = this.text.slice(read);
        read = this.text.length;
        yield piece;
      } else if (this.isFinal) {
        return;
      } else {
        await new Promise((resolve) => this.#wake.push(resolve));
      }
    }
  }

  /** @internal */
  mark(status) {
    if (this.isFinal) return;
    if (status === Status.SENT) this.times.sent ??= performance.now();
    if (this.text === "") this.status = status;
    this.dispatchEvent(new Event("state"));
  }

  /** @internal */
  begin({ id }) {
    this.responseId = id;
    this.dispatchEvent(new Event("state"));
  }

  /** @internal */
  add(text) {
    const now = performance.now();
    this.times.first ??= now;
    this.times.last = now;
    this.text += text;
    this.status = Status.STREAMING;
    this.#notify();
  }

  /** @internal */
  finish(status, error = null) {
    if (this.isFinal) return;
    this.status = status;
    this.error = error;
    this.#notify();
    this.#resolve(this);
    this.dispatchEvent(new Event("state"));
  }

  #notify() {
    const waiting = this.#wake;
    this.#wake = [];
    for (const resolve of waiting) resolve();
  }
}

/** An answer's way over the wire. */
class Turn {
  /** @type {Answer} */
  answer;
  lane = null;
  /** The server tells it on this connection. */
  isLive = false;
  sends = 0;
  /** @type {Turn | null} The successor, once it is steered, */
  next = null;
  /** @type {number} */
  steer = Steer.UNSENT;
  /** @type {Turn | null} and whose successor it is. */
  previous = null;
  /** Those who asked for stats. */
  asking = [];

  settleStats(stats) {
    for (const resolve of this.asking.splice(0)) resolve(stats);
  }
}

/**
 * The connection. Connects at once, and again after each loss, with growing delays, until `close()`.
 * Fires `connection` events (`detail`: a ConnectionDetail) and `notice` events for errors that belong to no answer
 * (`detail`: a WireError).
 */
export class Tickwire extends EventTarget {
  #url;
  #token;
  #WebSocket;
  #retryMs;
  #pingMs;
  #socket = null;
  /** The new try, while waiting; the limit, while connecting; the next ping, while open. */
  #timer;
  #attempts = 0;
  #openedAt = 0;
  #pings = new Map();
  #numPings = 0;
  #unanswered = 0;
  #listening = null;
  /** Why the server is about to close. @type {WireError | null} */
  #refusal = null;
  /** Lane name -> the turn that has it to itself until its last event. @type {Map<string, Turn>} */
  #lanes = new Map();
  /** @type {Turn[]} */
  #queue = [];

  /**
   * @param {string} url
   * @param {{token?: string, WebSocket?: any, retryMs?: number, pingMs?: number}} [options] `token`: an API key,
   *   sent as the first message. `retryMs`: the shortest delay. `pingMs`: how often the link is tried; two pings
   *   without a pong end it, for a browser does not see that a link is dead.
   */
  constructor(url, { token, WebSocket = globalThis.WebSocket, retryMs = 500, pingMs = 15000 } = {}) {
    super();
    if (!WebSocket) throw new TypeError("WebSocket: there is none here; pass that of the package `ws`");
    this.#url = url;
    this.#token = token;
    this.#WebSocket = WebSocket;
    this.#retryMs = retryMs;
    this.#pingMs = pingMs;
    /** @type {ConnectionDetail} */
    this.connection = { state: Connection.CLOSED, retryAt: null, code: null, reason: "" };
    this.connect();
  }

  /** Tries now instead of at the end of the current delay. */
  connect() {
    if (this.#socket) return;
    const socket = new this.#WebSocket(this.#url);
    this.#socket = socket;
    socket.onopen = () => this.#onOpen();
    socket.onmessage = (message) => this.#onMessage(message.data);
    socket.onclose = (event) => this.#onClose(event.code, event.reason);
    // A close event always follows, and says more.
    socket.onerror = () => {};
    this.#after(OPEN_WITHIN_MS, () => this.#abandon("The server does not answer."));
    this.#listen();
    this.#setConnection(Connection.CONNECTING);
    this.#tellConnection();
  }

  /**
   * Uses another API key from now on, or none. The connection is made anew at once, and what runs is taken up on it:
   * a response of another key is not found there.
   * @param {string | null} [token]
   */
  authenticate(token) {
    this.#token = token;
    if (this.connection.state === Connection.CLOSED) return;
    this.#attempts = 0;
    this.#abandon("The API key has changed.");
    this.connect();
  }

  /** Stops every answer and ends the connection, for good. */
  close() {
    clearTimeout(this.#timer);
    this.#listening?.abort();
    this.#listening = null;
    for (const turn of this.#lanes.values()) this.#cancel(turn);
    this.#letGo();
    this.#setConnection(Connection.CLOSED);
    this.#endAll(null);
    this.#tellConnection();
  }

  /**
   * Asks for an answer.
   * @param {ResponseRequest} request
   * @returns {Answer}
   */
  respond(request) {
    return this.#enqueue(this.#turn(request));
  }

  /**
   * Has a prompt computed, so that the turn that begins with it starts at once.
   * @param {ResponseRequest} request
   * @returns {Answer} without text; a next turn may name its `responseId`
   */
  warmUp(request) {
    return this.respond({ ...request, generate: false });
  }

  /**
   * Takes up an answer that was asked for elsewhere: before the page was loaded, or in another tab.
   * @param {string} responseId
   * @param {{after?: number}} [options] `after`: the `sequence` up to which its text is known
   * @returns {Answer} with the text from there on. If the server does not have it: interrupted.
   */
  resume(responseId, { after = -1 } = {}) {
    return this.#enqueue(this.#turn({}, { responseId, after }));
  }

  /** @returns {Promise<number | null>} milliseconds to the server and back; null without a connection. */
  ping() {
    if (this.connection.state !== Connection.OPEN) return Promise.resolve(null);
    const id = `${(this.#numPings += 1)}`;
    const sent = performance.now();
    return new Promise((resolve) => {
      this.#pings.set(id, (came) => resolve(came && came - sent));
      this.#send({ type: "ping", id });
    });
  }

  // -- turns ------------------------------------------------------------------------------------------------

  #turn(request, start) {
    const turn = new Turn();
    const acts = {
      stop: () => this.#stop(turn),
      steer: (input) => this.#steer(turn, input),
      stats: () => this.#stats(turn),
    };
    turn.answer = new Answer(request, acts, start);
    return turn;
  }

  #enqueue(turn) {
    this.#queue.push(turn);
    if (this.connection.state !== Connection.WAITING) this.connect();
    this.#sendQueued();
    return turn.answer;
  }

  #sendQueued() {
    while (this.connection.state === Connection.OPEN && this.#queue.length && this.#lanes.size < MAX_LANES) {
      const turn = this.#queue.shift();
      turn.lane = this.#freeLane();
      this.#lanes.set(turn.lane, turn);
      this.#ask(turn);
    }
  }

  /** The lowest lane name not in use: few names serve any number of answers. */
  #freeLane() {
    let number = 1;
    while (this.#lanes.has(`lane-${number}`)) number += 1;
    return `lane-${number}`;
  }

  #ask(turn) {
    const { responseId, sequence, request } = turn.answer;
    if (responseId) {
      const after = sequence < 0 ? {} : { starting_after: sequence };
      this.#send({ type: "response.resume", response_id: responseId, ...after, stream_id: turn.lane });
    } else {
      this.#send({ on_disconnect: "continue", ...request, type: "response.create", stream_id: turn.lane });
    }
    turn.sends += 1;
    turn.answer.mark(Status.SENT);
  }

  #send(frame) {
    this.#socket.send(JSON.stringify(frame));
  }

  #stop(turn) {
    const { answer, previous } = turn;
    const queued = this.#queue.indexOf(turn);
    const isUnsent = !answer.responseId && (queued >= 0 || (previous && previous.steer !== Steer.SENT));
    if (!isUnsent && this.connection.state === Connection.OPEN) {
      this.#cancel(turn);
      return;
    }
    if (isUnsent && queued >= 0) this.#queue.splice(queued, 1);
    // Where the server is away, it hears of it when the answer is taken up.
    answer.finish(Status.STOPPED);
    if (!answer.responseId) this.#follow(turn);
  }

  /** Before the server tells it here it would not know it: `#onLive` comes back to it. */
  #cancel({ answer, isLive }) {
    if (isLive) this.#send({ type: "response.cancel", response_id: answer.responseId });
  }

  #stats(turn) {
    if (!turn.isLive || turn.answer.isFinal) return Promise.resolve(null);
    if (!turn.asking.length) this.#send({ type: "response.stats", response_id: turn.answer.responseId });
    return new Promise((resolve) => turn.asking.push(resolve));
  }

  #steer(turn, input) {
    const earlier = turn.next?.answer;
    // What is said later comes later, unless the successor never came to be.
    if (earlier && (earlier.responseId || !earlier.isFinal)) return earlier.steer(input);
    const next = this.#turn({ ...turn.answer.request, input });
    next.previous = turn;
    turn.next = next;
    turn.steer = Steer.UNSENT;
    if (turn.answer.isFinal) this.#follow(turn);
    else this.#sendSteer(turn);
    return next.answer;
  }

  #sendSteer(turn) {
    const { next, answer } = turn;
    if (!next || next.answer.isFinal || !turn.isLive || turn.steer !== Steer.UNSENT) return;
    turn.steer = Steer.SENT;
    this.#send({ type: "response.steer", previous_response_id: answer.responseId, input: next.answer.request.input });
    next.answer.mark(Status.SENT);
  }

  /** A turn is over, and its successor is due. */
  #follow(turn) {
    const { next, answer } = turn;
    if (!next || next.answer.isFinal) return;
    if (!answer.responseId) {
      this.#release(next, answer.status, answer.error);
      return;
    }
    // What the server would do by itself; so it can be asked for in plain words too, if need be.
    next.answer.request.previous_response_id = answer.responseId;
    if (turn.steer === Steer.SENT) {
      next.lane = turn.lane;
      this.#lanes.set(turn.lane, next);
    } else {
      turn.steer = Steer.SENT;
      this.#enqueue(next);
    }
  }

  #release(turn, status, error = null) {
    if (this.#lanes.get(turn.lane) === turn) this.#lanes.delete(turn.lane);
    turn.isLive = false;
    turn.settleStats(null);
    turn.answer.finish(status, error);
    this.#follow(turn);
    this.#sendQueued();
  }

  // -- what comes -------------------------------------------------------------------------------------------

  #onMessage(data) {
    this.#unanswered = 0;
    const event = JSON.parse(data);
    switch (event.type) {
      case "pong":
        this.#pings.get(event.id)?.(performance.now());
        this.#pings.delete(event.id);
        break;
      case "error":
        this.#onError(event);
        break;
      case "response.steer.failed":
        this.#onSteerFailed(event);
        break;
      case "response.stats":
        for (const turn of this.#lanes.values()) {
          if (turn.answer.responseId === event.response_id) turn.settleStats(event.stats);
        }
        break;
      case "response.resumed": {
        const turn = this.#lanes.get(event.stream_id);
        if (turn) this.#onLive(turn);
        break;
      }
      default: {
        const turn = this.#lanes.get(event.stream_id);
        // Late events of a lane that is free again are races, not errors; event types of later servers are welcome.
        if (turn && isLogged(event)) this.#onEvent(turn, event);
      }
    }
  }

  /** An event of a response's log. */
  #onEvent(turn, event) {
    const { answer } = turn;
    const { response, sequence_number: number } = event;
    if (!answer.responseId) {
      if (event.type !== "response.created") return;
      answer.begin(response);
      this.#onLive(turn);
    }
    if ((response && response.id !== answer.responseId) || number <= answer.sequence) return;
    const status = response && finalStatus(response);
    if (!answer.isFinal) {
      if (number > answer.sequence + 1) {
        this.#cancel(turn);
        const message = `The server left out what came before event ${number}.`;
        answer.finish(Status.INTERRUPTED, { code: "events_missing", message });
      } else {
        this.#attempts = 0;
        answer.sequence = number;
        answer.model = response?.model ?? answer.model;
        if (event.type === "response.output_text.delta") answer.add(event.delta);
        if (status) answer.usage = response.usage ?? null;
      }
    }
    if (status) this.#release(turn, status, response.error ?? endingError(response));
  }

  #onLive(turn) {
    turn.isLive = true;
    if (turn.answer.stopRequested) this.#cancel(turn);
    else this.#sendSteer(turn);
  }

  #onError({ error, stream_id: lane }) {
    if (error.code === "invalid_api_key") {
      this.#refusal = error;
      return;
    }
    const turn = lane ? this.#lanes.get(lane) : this.#onlyUnanswered();
    // A cancel that met an answer already over: the answer's own terminal event says what happened.
    if (error.param === "response_id" && (!turn?.answer.responseId || turn.isLive)) return;
    if (turn) this.#release(turn, turn.answer.responseId ? Status.INTERRUPTED : Status.FAILED, error);
    else this.dispatchEvent(new CustomEvent("notice", { detail: error }));
  }

  /** An error without a lane can still be placed when just one request has had no reply at all. */
  #onlyUnanswered() {
    const unanswered = [...this.#lanes.values()].filter(({ answer }) => !answer.responseId);
    return unanswered.length === 1 ? unanswered[0] : undefined;
  }

  #onSteerFailed({ error, steer }) {
    for (const holder of this.#lanes.values()) {
      // The steered one, or, if that is over, its successor, which has taken its lane.
      const turn = [holder, holder.previous].find((each) => each?.answer.responseId === steer.previous_response_id);
      const next = turn?.next;
      if (!next || next.answer.responseId) continue;
      if (!TOO_LATE.has(error.code)) {
        this.#release(next, Status.FAILED, error);
      } else if (holder === next) {
        this.#ask(next);
      } else {
        turn.steer = Steer.LOST;
      }
      return;
    }
  }

  // -- the connection ---------------------------------------------------------------------------------------

  /** To be told when all is in order for it: whoever hears it may call anything. */
  #setConnection(state, { retryAt = null, code = null, reason = "" } = {}) {
    this.connection = { state, retryAt, code, reason };
  }

  #tellConnection() {
    this.dispatchEvent(new CustomEvent("connection", { detail: this.connection }));
  }

  #after(ms, act) {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(act, ms);
  }

  /** Things that happen to a device tell more than a delay: what was away may be back, what was there may be gone. */
  #listen() {
    if (this.#listening) return;
    this.#listening = new AbortController();
    const { signal } = this.#listening;
    globalThis.addEventListener?.("online", () => this.#try(), { signal });
    globalThis.addEventListener?.("offline", () => this.#doubt(), { signal });
    const seen = () => globalThis.document.visibilityState === "visible" && this.#try();
    globalThis.document?.addEventListener("visibilitychange", seen, { signal });
  }

  #try() {
    if (this.connection.state === Connection.WAITING) this.connect();
    else this.#doubt();
  }

  /** Looks whether the link is alive. */
  #doubt() {
    if (this.connection.state === Connection.OPEN) this.#tryLink(PONG_WITHIN_MS);
  }

  #onOpen() {
    this.#openedAt = performance.now();
    this.#after(this.#pingMs, () => this.#tryLink());
    // What comes behind need not wait for the reply: it is read in order.
    if (this.#token) this.#send({ type: "session.auth", token: this.#token });
    this.#setConnection(Connection.OPEN);
    for (const turn of [...this.#lanes.values()]) this.#ask(turn);
    this.#sendQueued();
    this.#tellConnection();
  }

  /** Pings, and comes back to see whether anything was heard. */
  #tryLink(patience = this.#pingMs) {
    if (this.#unanswered === 2) {
      this.#abandon("The connection has fallen silent.");
      return;
    }
    this.#unanswered += 1;
    void this.ping();
    this.#after(Math.min(patience, this.#pingMs), () => this.#tryLink(this.#unanswered ? patience : undefined));
  }

  /** Does not wait for a close that may never be told. */
  #abandon(reason) {
    this.#letGo();
    this.#onClose(1006, reason);
  }

  #letGo() {
    const socket = this.#socket;
    this.#socket = null;
    if (!socket) return;
    socket.onopen = socket.onmessage = socket.onclose = null;
    socket.close(1000);
  }

  #onClose(code, reason) {
    const wasOpen = this.connection.state === Connection.OPEN;
    if (wasOpen && performance.now() - this.#openedAt > GOOD_CONNECTION_MS) this.#attempts = 0;
    this.#socket = null;
    clearTimeout(this.#timer);
    const error = this.#refusal ?? { code: "connection_lost", message: closeMessage(code, reason) };
    this.#refusal = null;
    if (isFinalClose(code)) {
      this.#setConnection(Connection.REFUSED, { code, reason });
      this.#endAll(error);
    } else {
      const delay = Math.min(LONGEST_RETRY_MS, this.#retryMs * 2 ** this.#attempts) * (0.75 + Math.random() / 2);
      this.#attempts += 1;
      this.#after(delay, () => this.connect());
      this.#setConnection(Connection.WAITING, { retryAt: Date.now() + delay, code, reason });
      this.#forgetConnection();
      for (const turn of [...this.#lanes.values()].reverse()) this.#keep(turn, error);
    }
    this.#tellConnection();
  }

  /** Of what was under way on a connection that is over nothing comes any more. */
  #forgetConnection() {
    this.#unanswered = 0;
    for (const resolve of this.#pings.values()) resolve(null);
    this.#pings.clear();
    for (const turn of this.#lanes.values()) {
      turn.isLive = false;
      turn.settleStats(null);
      if (turn.next && turn.steer === Steer.SENT) turn.steer = Steer.LOST;
    }
  }

  /** What becomes of a turn when its connection is lost. One that the server knows keeps its lane. */
  #keep(turn, error) {
    const { answer } = turn;
    if (answer.stopRequested) answer.finish(Status.STOPPED);
    if (answer.responseId) return;
    this.#lanes.delete(turn.lane);
    if (turn.sends >= MAX_SENDS) answer.finish(Status.INTERRUPTED, error);
    if (answer.isFinal) {
      this.#follow(turn);
    } else {
      answer.mark(Status.QUEUED);
      this.#queue.unshift(turn);
    }
  }

  #endAll(error) {
    this.#forgetConnection();
    const ending = [...this.#lanes.values(), ...this.#queue.splice(0)];
    this.#lanes.clear();
    for (let turn of ending) {
      for (; turn; turn = turn.next) {
        // The reader asked for the end and got it, though the server could not say so any more.
        const { answer } = turn;
        if (answer.stopRequested) answer.finish(Status.STOPPED);
        else answer.finish(Status.INTERRUPTED, error);
      }
    }
  }
}

/** Whether an event is one of a response's log: numbered, and the same for all readers. */
function isLogged({ type, sequence_number: number }) {
  return number !== undefined && !type.startsWith("response.steer.");
}

/** @returns {string | null} our word for a response that is over, null for one that still runs. */
function finalStatus({ status, incomplete_details: details }) {
  switch (status) {
    case "completed":
      return Status.COMPLETED;
    case "failed":
      return Status.FAILED;
    case "cancelled":
      return details ? Status.INTERRUPTED : Status.STOPPED;
    case "incomplete":
      if (details?.reason === "max_output_tokens") return Status.LENGTH;
      return details?.reason === "steered" ? Status.STEERED : Status.INTERRUPTED;
    default:
      return null;
  }
}

/** Why the server ended a response early, if that is not plain from its status. */
function endingError(response) {
  if (finalStatus(response) !== Status.INTERRUPTED) return null;
  const code = response.incomplete_details?.reason;
  if (code === "abandoned") return { code, message: "Nobody read the answer for so long that the server ended it." };
  return { code, message: `The server ended the answer early${code ? `: ${code}` : ""}.` };
}

function closeMessage(code, reason) {
  if (reason) return reason;
  if (code === 1009) return "The message was too large for the server.";
  if (code === 1012) return "The server restarted.";
  if (code === 1013) return "The server is overloaded.";
  return "The connection was lost.";
}
