/**
 * Has the server compute a question while it is being typed, so that its answer begins at once.
 *
 * Knows drafts and pauses in typing. One warm-up runs at a time, none while its conversation is being answered, and
 * it is part of no conversation: the server only remembers what it has computed.
 */

import { Connection, Status } from "../tickwire.js";
import { requestOf } from "./setup.js";

const PAUSE_MS = 400;
const SHORTEST = 12;
// A request for less than this costs more than it saves.
const NEW_CHARACTERS = 16;

export class WarmUp {
  #wire;
  #chat;
  #preferences;
  /** {conversationId, question, setup}: what is being typed; null: nothing is. */
  #draft = null;
  #timer = null;
  #answer = null;
  /** The prompt that was computed last. */
  #warm = "";

  constructor(wire, chat, preferences) {
    this.#wire = wire;
    this.#chat = chat;
    this.#preferences = preferences;
    chat.addEventListener("path", ({ detail }) => this.#isAt(detail.conversationId) && this.#hold());
    chat.addEventListener("settled", ({ detail }) => this.#isAt(detail.message.conversation) && this.#wait());
  }

  /** Somebody is writing this, and it would be asked with this setup. */
  draft(conversationId, text, setup) {
    this.stop();
    // What a question loses at its ends when it is sent.
    const question = text.trim();
    if (question.length < SHORTEST) return;
    this.#draft = { conversationId, question, setup };
    this.#wait();
  }

  /** There is no draft any more. What was computed so far stays with the server. */
  stop() {
    this.#draft = null;
    this.#hold();
  }

  #isAt(conversationId) {
    return this.#draft?.conversationId === conversationId;
  }

  #hold() {
    clearTimeout(this.#timer);
    this.#answer?.stop();
  }

  #wait() {
    const draft = this.#draft;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(async () => {
      // One that was stopped runs until the server has said so.
      await this.#answer?.ended;
      if (draft === this.#draft) this.#begin(draft);
    }, PAUSE_MS);
  }

  #begin({ conversationId, question, setup }) {
    const isOpen = this.#wire.connection.state === Connection.OPEN;
    if (!isOpen || !this.#preferences.warmUp || this.#chat.isBusy(conversationId)) return;
    const request = { ...requestOf(setup), input: this.#chat.input(conversationId, question) };
    const prompt = JSON.stringify([request.model, request.instructions, request.input]);
    if (prompt.length - commonLength(prompt, this.#warm) < NEW_CHARACTERS) return;
    const answer = this.#wire.warmUp({ ...request, on_disconnect: "cancel", store: false });
    this.#answer = answer;
    void answer.ended.then(({ status }) => {
      if (status === Status.COMPLETED) this.#warm = prompt;
    });
  }
}

function commonLength(one, other) {
  let length = 0;
  while (length < one.length && one[length] === other[length]) length += 1;
  return length;
}
