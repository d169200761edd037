/**
 * The socket client: many answers at once over one WebSocket that speaks the OpenAI Responses WebSocket mode.
 *
 * Knows the wire: frames, lanes, terminal events, close codes, when to come back. It does not know the page:
 * no DOM, no storage, no dependencies. Runs in browsers, workers and Node 20 and later (Node 20: pass the
 * `WebSocket` class of the `ws` package).
 *
 *     const wire = new Tickwire("ws://127.0.0.1:8000/v1/responses");
 *     const answer = wire.respond({ input: "Hello" });
 *     for await (const text of answer) process.stdout.write(text);
 *     const { status, usage } = await answer.ended;
 */

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
  STOPPED: "stopped", // by stop()
  FAILED: "failed", // the server said so; see `error`
  INTERRUPTED: "interrupted", // the connection or the server went away
});

const FINAL = new Set([Status.COMPLETED, Status.LENGTH, Status.STOPPED, Status.FAILED, Status.INTERRUPTED]);

const FIRST_RETRY_MS = 500;
const LONGEST_RETRY_MS = 8000;
// A connection that lived this long was a good one: the next loss starts from the shortest delay again.
const GOOD_CONNECTION_MS = 5000;
const PROTOCOL_ERROR_CLOSES = new Set([1002, 1003, 1007, 1008, 1010]);

/** @returns {boolean} whether the close code alone tells a client to stay away. */
export function isFinalClose(code) {
  return PROTOCOL_ERROR_CLOSES.has(code) || (code >= 4400 && code < 4500 && code !== 4408 && code !== 4429);
}

/**
 * One answer. Iterating gives its text in pieces as they come; a reader that pulls late gets one bigger piece.
 * Any number of readers may iterate, each from the beginning. Fires `sent` when the request has left the queue.
 */
export class Answer extends EventTarget {
  #wake = [];
  #resolve;
  #stop;

  constructor(request, stop) {
    super();
    this.request = request;
    this.text = "";
    this.status = Status.QUEUED;
    /** @type {{type?: string, code?: string, message: string, param?: string} | null} */
    this.error = null;
    /** The server's token counts, once it has ended. */
    this.usage = null;
    this.responseId = null;
    this.model = null;
    /** Milliseconds of `performance.now()`: when the request went out, its first text and its last text came. */
    this.times = { sent: null, first: null, last: null };
    this.stopRequested = false;
    /** Resolves with this answer when it is final; never rejects. */
    this.ended = new Promise((resolve) => {
      this.#resolve = resolve;
    });
    this.#stop = stop;
  }

  get isFinal() {
    return FINAL.has(this.status);
  }

  /** Asks the server to stop. The text so far stays; `ended` resolves when the server has said so. */
  stop() {
    if (!this.isFinal && !this.stopRequested) {
      this.stopRequested = true;
      this.#stop(this);
    }
  }

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
  markSent() {
    this.status = Status.SENT;
    this.times.sent = performance.now();
    this.dispatchEvent(new Event("sent"));
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
  }

  #notify() {
    const waiting = this.#wake;
    this.#wake = [];
    for (const resolve of waiting) resolve();
  }
}

/**
 * The connection. Connects at once, and again after each loss, with growing delays, until `close()`.
 * Fires `connection` events (`detail`: {state, retryAt, code, reason}) and `notice` events for errors that
 * belong to no answer (`detail`: the error object).
 */
export class Tickwire extends EventTarget {
  #url;
  #WebSocket;
  #socket = null;
  #timer = null;
  #attempts = 0;
  #openedAt = 0;
  /** Lane name -> the answer that has it to itself until it is final. */
  #lanes = new Map();
  #queue = [];

  constructor(url, { WebSocket = globalThis.WebSocket } = {}) {
    super();
    this.#url = url;
    this.#WebSocket = WebSocket;
    this.connection = { state: Connection.CLOSED, retryAt: null, code: null, reason: "" };
    this.connect();
  }

  /** Tries now instead of at the end of the current delay. */
  connect() {
    if (this.#socket) return;
    clearTimeout(this.#timer);
    this.#setConnection(Connection.CONNECTING);
    const socket = new this.#WebSocket(this.#url);
    this.#socket = socket;
    socket.onopen = () => this.#onOpen();
    socket.onmessage = (message) => this.#onMessage(message.data);
    socket.onclose = (event) => this.#onClose(socket, event.code, event.reason);
    // A close event always follows, and says more.
    socket.onerror = () => {};
  }

  /** Ends the connection and every answer on it, for good. */
  close() {
    clearTimeout(this.#timer);
    const socket = this.#socket;
    this.#socket = null;
    socket?.close(1000);
    this.#endAll([...this.#lanes.values(), ...this.#queue], Status.INTERRUPTED, null);
    this.#setConnection(Connection.CLOSED);
  }

  /**
   * Asks for an answer.
   * @param {{input: string | Array<{role: string, content: string}>, model?: string, instructions?: string,
   *   max_output_tokens?: number, temperature?: number, top_p?: number}} request the fields of `response.create`
   * @returns {Answer}
   */
  respond(request) {
    const answer = new Answer(request, (it) => this.#stop(it));
    this.#queue.push(answer);
    if (this.connection.state === Connection.REFUSED || this.connection.state === Connection.CLOSED) this.connect();
    this.#sendQueued();
    return answer;
  }

  #setConnection(state, { retryAt = null, code = null, reason = "" } = {}) {
    this.connection = { state, retryAt, code, reason };
    this.dispatchEvent(new CustomEvent("connection", { detail: this.connection }));
  }

  #onOpen() {
    this.#openedAt = performance.now();
    this.#setConnection(Connection.OPEN);
    this.#sendQueued();
  }

  #sendQueued() {
    if (this.connection.state !== Connection.OPEN) return;
    for (const answer of this.#queue.splice(0)) {
      const lane = this.#freeLane();
      this.#lanes.set(lane, answer);
      this.#send({ ...answer.request, type: "response.create", stream_id: lane });
      answer.markSent();
    }
  }

  /** The lowest lane name not in use: few names serve any number of answers, and servers limit names. */
  #freeLane() {
    let number = 1;
    while (this.#lanes.has(`lane-${number}`)) number += 1;
    return `lane-${number}`;
  }

  #send(frame) {
    this.#socket.send(JSON.stringify(frame));
  }

  #stop(answer) {
    const queued = this.#queue.indexOf(answer);
    if (queued >= 0) {
      this.#queue.splice(queued, 1);
      answer.finish(Status.STOPPED);
    } else if (answer.responseId) {
      this.#send({ type: "response.cancel", response_id: answer.responseId });
    }
    // Otherwise the id is not known yet; `response.created` brings it, and the cancel goes out then.
  }

  #onMessage(data) {
    const event = JSON.parse(data);
    if (event.type === "error") {
      this.#onError(event);
      return;
    }
    const answer = this.#lanes.get(event.stream_id);
    // Late events of a lane that is free again are races, not errors; event types of later servers are welcome.
    if (!answer) return;
    if (event.type === "response.output_text.delta") answer.add(event.delta);
    else if (event.response) this.#onResponse(event.stream_id, answer, event.response);
  }

  #onResponse(lane, answer, response) {
    answer.model = response.model ?? answer.model;
    if (!answer.responseId) {
      answer.responseId = response.id;
      if (answer.stopRequested) this.#stop(answer);
    }
    const status = finalStatus(response, answer.stopRequested);
    if (!status) return;
    this.#lanes.delete(lane);
    answer.usage = response.usage ?? null;
    answer.finish(status, response.error ?? null);
  }

  #onError({ error, stream_id: lane }) {
    // A cancel that met an answer already over: the answer's own terminal event says what happened.
    if (error.param === "response_id") return;
    const owner = lane ?? this.#onlyUnstartedLane();
    const answer = this.#lanes.get(owner);
    if (!answer) {
      this.dispatchEvent(new CustomEvent("notice", { detail: error }));
      return;
    }
    this.#lanes.delete(owner);
    answer.finish(Status.FAILED, error);
  }

  /** An error without a lane can still be placed when just one request has had no reply at all. */
  #onlyUnstartedLane() {
    const unstarted = [...this.#lanes].filter(([, answer]) => answer.status === Status.SENT && !answer.responseId);
    return unstarted.length === 1 ? unstarted[0][0] : undefined;
  }

  #onClose(socket, code, reason) {
    if (socket !== this.#socket) return;
    const wasOpen = this.connection.state === Connection.OPEN;
    if (wasOpen && performance.now() - this.#openedAt > GOOD_CONNECTION_MS) this.#attempts = 0;
    this.#socket = null;
    const error = { code: "connection_lost", message: closeMessage(code, reason) };
    const sent = [...this.#lanes.values()];
    this.#lanes.clear();
    if (isFinalClose(code)) {
      this.#endAll([...sent, ...this.#queue.splice(0)], Status.INTERRUPTED, error);
      this.#setConnection(Connection.REFUSED, { code, reason });
      return;
    }
    this.#endAll(sent, Status.INTERRUPTED, error);
    const delay = Math.min(LONGEST_RETRY_MS, FIRST_RETRY_MS * 2 ** this.#attempts) * (0.75 + Math.random() / 2);
    this.#attempts += 1;
    this.#timer = setTimeout(() => this.connect(), delay);
    this.#setConnection(Connection.WAITING, { retryAt: Date.now() + delay, code, reason });
  }

  #endAll(answers, status, error) {
    this.#lanes.clear();
    for (const answer of answers) {
      // The reader asked for the end and got it, though the server could not say so any more.
      answer.finish(answer.stopRequested ? Status.STOPPED : status, answer.stopRequested ? null : error);
    }
  }
}

/** @returns {string | null} our word for a response that is over, null for one that still runs. */
function finalStatus(response, stopRequested) {
  switch (response.status) {
    case "completed":
      return Status.COMPLETED;
    case "failed":
      return Status.FAILED;
    case "cancelled":
      return stopRequested ? Status.STOPPED : Status.INTERRUPTED;
    case "incomplete":
      if (response.incomplete_details?.reason === "max_output_tokens") return Status.LENGTH;
      return stopRequested ? Status.STOPPED : Status.INTERRUPTED;
    default:
      return null;
  }
}

function closeMessage(code, reason) {
  if (reason) return reason;
  if (code === 1009) return "The message was too large for the server.";
  if (code === 1012) return "The server restarted.";
  if (code === 1013) return "The server is overloaded.";
  return "The connection was lost.";
}
