/**
 * How far the answer on screen is, as the server sees it: its place in the queue, how much of the prompt is read, how
 * fast it is written. Asked again and again while the answer runs, and never kept.
 *
 * Knows the Chat, and when to ask next. It does not know what is made of the numbers: it fires
 *
 *     stats     the server has said more; null: it cannot be asked now      detail: {message, stats}
 */

import { isRunning } from "./message.js";

/** The next question waits this long after the last reply: what waits or is read changes at every tick, */
const WAITING_MS = 300;
/** and of what is being written the text itself tells the most. */
const WRITING_MS = 1000;

export class Live extends EventTarget {
  #chat;
  #conversationId = null;
  #message = null;
  #stats = null;
  /** Stands for the questions about one run; whoever starts another one ends it. */
  #round = null;

  constructor(chat) {
    super();
    this.#chat = chat;
    chat.addEventListener("path", ({ detail }) => {
      if (detail.conversationId === this.#conversationId) this.#look();
    });
    chat.addEventListener("settled", ({ detail }) => {
      if (detail.message === this.#message) this.#look();
    });
  }

  /** Looks at this conversation from now on; null: at none. */
  watch(conversationId) {
    this.#conversationId = conversationId;
    this.#look();
  }

  /** What the server said last of this message; null: nothing, or it is not the one that runs on screen. */
  of(message) {
    return message === this.#message ? this.#stats : null;
  }

  #look() {
    const message = this.#conversationId && this.#chat.running(this.#conversationId);
    if (message === this.#message) return;
    this.#message = message;
    this.#stats = null;
    this.#round = Symbol();
    if (message) void this.#ask(message, this.#round);
  }

  async #ask(message, round) {
    while (isRunning(message)) {
      const stats = (await this.#chat.answer(message)?.stats()) ?? null;
      if (this.#round !== round) return;
      const isNews = stats !== null || this.#stats !== null;
      this.#stats = stats;
      if (isNews) this.dispatchEvent(new CustomEvent("stats", { detail: { message, stats } }));
      await new Promise((resolve) => setTimeout(resolve, stats?.status === "generating" ? WRITING_MS : WAITING_MS));
      if (this.#round !== round) return;
    }
  }
}
