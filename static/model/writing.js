/**
 * How one answer comes to be: asked for, collected, kept, and, when the server has lost it, asked for again from its
 * last word, so that its reader sees it go on where it was.
 *
 * Knows the socket client, which comes back by itself after a cut, and the store. It does not know the conversation:
 * it is told what to ask, and fires events.
 *
 *     text       the answer grew, or its state changed
 *     known      the store has what other tabs need to read along
 *     settled    the answer is final; it is not kept yet
 *     overtaken  another tab has asked for it anew, or ended it    detail: {record} as the store has it
 *     trouble    the store refused to keep it                      detail: {error}
 *
 * What the server has lost, because it restarted or because nobody read for too long, goes on by itself as long as it
 * is fresh: an hour after its last word nobody waits for it any more, and the reader is asked. So it is when a few
 * attempts in a row have brought nothing, and when the reader has stopped it. Where several tabs read it, only one
 * asks: the store lets just one of them write down that it does.
 */

import { askedAnew, isRunning } from "./message.js";
import { atEnd, atFirstText, firstTokenAt, withServers } from "./stats.js";
import { Connection, Status } from "../tickwire.js";
import { text as say } from "../texts.js";

const SAVE_EVERY_MS = 500;
const FRESH_MS = 3_600_000;
const FRUITLESS_ATTEMPTS = 2;
// A server that ends refuses what is new while it lets others finish; it takes 10 s for that unless it is told else.
const SERVER_ENDS_WITHIN_MS = 15_000;

const ENDING = "server_unavailable";
// What the server says of a response that cannot be taken up is meant for those who write clients.
const GONE = new Set(["response_gone", "response_not_found"]);
const LOST = new Set([...GONE, "abandoned", ENDING]);

/** Whether somebody may still wait for an answer that is not whole. */
export function isFresh({ grown, created }) {
  return Date.now() - (grown ?? created) < FRESH_MS;
}

export class Writing extends EventTarget {
  /** The socket client's, of the response that is being read; null: none yet. */
  answer = null;
  #message;
  #wire;
  #store;
  #requestFor;
  #isStopped = false;
  #isLeft = false;
  /** When the first token of the response came, on this page's clock; null: not known. */
  #firstToken = null;
  #saving = null;
  #wake = () => {};

  /** @param requestFor gives the fields of the `response.create` that asks for the message, or for its rest */
  constructor(message, { wire, store, requestFor }) {
    super();
    this.#message = message;
    this.#wire = wire;
    this.#store = store;
    this.#requestFor = requestFor;
  }

  /** Writes a message to its end: a new one, or one whose response the server is telling. */
  async write() {
    let fruitless = 0;
    do {
      const { length } = this.#message.text;
      await this.#collect();
      if (this.#isLeft) return;
      fruitless = this.#message.text.length > length ? 0 : fruitless + 1;
      if (!this.#isLost() || fruitless > FRUITLESS_ATTEMPTS) return this.#settle();
      await this.#serverToComeBack();
    } while (await this.#claim());
  }

  /** Asks anew for a message that has no response, or whose response has ended, and writes it to its end. */
  async writeOn() {
    if (await this.#claim()) await this.write();
  }

  stop() {
    this.#isStopped = true;
    this.answer?.stop();
    this.#wake();
  }

  /** The message is not this tab's to write any more. */
  leave() {
    this.#isLeft = true;
    this.stop();
  }

  /** Keeps what there is. */
  save({ known = false } = {}) {
    this.#store.update(this.#message).then(
      () => known && this.#fire("known"),
      (error) => this.#fire("trouble", { error }),
    );
  }

  #saveSoon() {
    this.#saving ??= setTimeout(() => {
      this.#saving = null;
      this.save();
    }, SAVE_EVERY_MS);
  }

  /** Reads one response, and adds its text to what the message has. */
  async #collect() {
    const message = this.#message;
    const asked = !message.responseId;
    const answer = asked
      ? this.#wire.respond(this.#requestFor())
      : this.#wire.resume(message.responseId, { after: message.sequence });
    this.answer = answer;
    this.#firstToken = null;
    if (this.#isStopped) answer.stop();
    const before = message.text;
    // What is told again has its first text behind it, and only goes on.
    const statusNow = () =>
      !asked && before && answer.status === Status.SENT ? Status.STREAMING : answer.status;
    // The text and the number up to which it is known must not be kept apart.
    const note = () => {
      message.text = before + answer.text;
      message.sequence = answer.sequence;
    };
    const noteState = () => {
      if (this.#isLeft || answer.isFinal) return;
      message.status = statusNow();
      if (answer.responseId && message.responseId !== answer.responseId) this.#name(answer);
      this.#fire("text");
    };
    answer.addEventListener("state", noteState);
    noteState();
    for await (const _ of answer) {
      if (this.#isLeft || answer.isFinal) break;
      const isFirst = message.text === before;
      note();
      message.status = statusNow();
      message.grown = Date.now();
      if (isFirst) this.#begin(answer, asked);
      this.#fire("text");
      this.#saveSoon();
    }
    clearTimeout(this.#saving);
    this.#saving = null;
    if (this.#isLeft) return;
    note();
    if (answer.text) message.grown = Date.now();
    if (answer.text || answer.usage) message.stats = atEnd(message, answer, asked, this.#firstToken);
  }

  /** The server has said what the response is called. */
  #name({ responseId, sequence }) {
    Object.assign(this.#message, { responseId, sequence });
    this.save({ known: true });
  }

  /** The first text of a response is here. */
  #begin(answer, asked) {
    const message = this.#message;
    message.stats = atFirstText(message, answer, asked);
    // Of one that was taken up, its first text here is not its first.
    if (asked) this.#firstToken = answer.times.first;
    this.save();
    void answer.stats().then((server) => {
      if (answer.isFinal || this.#isLeft) return;
      message.stats = withServers(message, server);
      this.#firstToken ??= firstTokenAt(server);
    });
  }

  /** Whether the response has ended without being whole, and its reader still waits for the rest. */
  #isLost() {
    const { status, error } = this.answer;
    const broke = status === Status.INTERRUPTED || status === Status.FAILED;
    return broke && LOST.has(error?.code) && !this.#isStopped && isFresh(this.#message);
  }

  async #serverToComeBack() {
    if (this.answer.error.code !== ENDING) return;
    this.#message.status = Status.QUEUED;
    this.#fire("text");
    let patience, seen;
    await new Promise((resolve) => {
      this.#wake = resolve;
      patience = setTimeout(resolve, SERVER_ENDS_WITHIN_MS);
      seen = ({ detail }) => detail.state === Connection.OPEN && resolve();
      this.#wire.addEventListener("connection", seen);
    });
    clearTimeout(patience);
    this.#wire.removeEventListener("connection", seen);
  }

  /** Writes down that this tab asks for the rest. @returns {Promise<boolean>} whether it is to do so */
  async #claim() {
    const message = this.#message;
    const claiming = this.#store.claim({ ...message });
    message.status = Status.QUEUED;
    message.error = null;
    this.#fire("text");
    let claim;
    try {
      claim = await claiming;
    } catch (error) {
      // What is not kept cannot be told to other tabs either: this one is alone with it.
      this.#fire("trouble", { error });
      claim = { won: true, record: askedAnew(message) };
    }
    if (this.#isLeft) return false;
    if (!claim.won) {
      this.#fire("overtaken", claim);
      return false;
    }
    Object.assign(message, claim.record);
    this.#fire("known");
    if (this.#isStopped) this.#settle();
    return !this.#isStopped;
  }

  #settle() {
    const message = this.#message;
    const { status, error } = this.answer ?? { status: Status.STOPPED, error: null };
    const isCut = isRunning({ status }) || status === Status.INTERRUPTED || status === Status.FAILED;
    const stopped = this.#isStopped && isCut;
    message.status = stopped ? Status.STOPPED : status;
    message.error = stopped ? null : inOurWords(error);
    this.#fire("settled");
  }

  #fire(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }
}

function inOurWords(error) {
  return GONE.has(error?.code) ? { ...error, message: say("answer.gone") } : error;
}
