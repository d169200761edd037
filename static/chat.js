/**
 * Conversations at work: asks, collects, keeps.
 *
 * Knows the store and the socket client, and which answer is running in which conversation. An answer belongs to
 * its conversation, not to what is on screen. It does not know the page: it fires events, and views listen.
 *
 *     list      the conversations, their order or their titles changed
 *     path      the messages of a conversation changed        detail: {conversationId}
 *     text      an answer grew, or its state changed          detail: {message}
 *     settled   an answer is final                            detail: {message}
 *     trouble   the store refused to keep something           detail: {error}
 */

import { newId, pathTo } from "./store.js";
import { Status } from "./tickwire.js";

const SAVE_EVERY_MS = 500;
const TITLE_LENGTH = 60;
// A small model that samples from its whole distribution loses the thread; this keeps it on it and still lively.
const SAMPLING = { temperature: 0.6, top_p: 0.95 };
const RUNNING = [Status.QUEUED, Status.SENT, Status.STREAMING];
// What the server says of a response that cannot be taken up is meant for those who write clients.
const GONE = new Set(["response_gone", "response_not_found"]);
const GONE_MESSAGE = "The rest of this answer is lost: the server does not have it any more.";

/** Whether an answer may still grow. */
export function isRunning(message) {
  return RUNNING.includes(message.status);
}

export class Chat extends EventTarget {
  /** The model's name, once it is known; without it the server's own is asked. */
  model = null;
  #store;
  #wire;
  #conversations = new Map();
  /** Conversation id -> its messages, of those that were opened. */
  #messages = new Map();
  /** Message that is being written -> the Answer that writes it. */
  #answers = new Map();

  constructor(store, wire) {
    super();
    this.#store = store;
    this.#wire = wire;
  }

  /** Reads the list, and takes up what is being written, whoever asked for it: this page before a reload, or a tab. */
  async load() {
    for (const conversation of await this.#store.conversations()) {
      this.#conversations.set(conversation.id, conversation);
    }
    const running = await this.#store.withStatus(RUNNING);
    await Promise.all(running.map(({ conversation }) => this.has(conversation) && this.open(conversation)));
    this.#fire("list");
  }

  /** All conversations, the one written to last first. */
  get list() {
    return [...this.#conversations.values()].sort((a, b) => b.updated - a.updated);
  }

  has(conversationId) {
    return this.#conversations.has(conversationId);
  }

  title(conversationId) {
    return this.#conversations.get(conversationId)?.title ?? "";
  }

  /** The messages of a conversation as it is read, from the first to the last. */
  async open(conversationId) {
    if (!this.#messages.has(conversationId)) {
      const messages = await this.#store.messages(conversationId);
      // While the store was read, a question may have begun this conversation's list, or another call have read it.
      if (!this.#messages.has(conversationId)) {
        this.#messages.set(conversationId, messages);
        for (const message of messages) if (isRunning(message)) this.#takeUp(message);
      }
    }
    return this.path(conversationId);
  }

  /** As `open`, for a conversation that is open already. */
  path(conversationId) {
    const conversation = this.#conversations.get(conversationId);
    return conversation ? pathTo(conversation.head, this.#messages.get(conversationId) ?? []) : [];
  }

  /** The answer that runs in a conversation, if one does. */
  running(conversationId) {
    return this.path(conversationId).find(isRunning) ?? null;
  }

  isBusy(conversationId) {
    return this.running(conversationId) !== null;
  }

  /** Asks in a conversation, or in a new one (null). Returns the conversation's id. */
  ask(conversationId, text) {
    const conversation = this.#conversations.get(conversationId) ?? this.#begin(text);
    const question = this.#add(conversation, { role: "user", text, parent: conversation.head });
    this.#answer(conversation, question);
    return conversation.id;
  }

  /** Answers the last question of a conversation once more; the earlier answer stays in the tree. */
  retry(conversationId) {
    const conversation = this.#conversations.get(conversationId);
    const question = this.path(conversationId).findLast((message) => message.role === "user");
    this.#answer(conversation, question);
  }

  stop(conversationId) {
    const message = this.running(conversationId);
    if (message) this.#answers.get(message)?.stop();
  }

  async remove(conversationId) {
    this.stop(conversationId);
    this.#conversations.delete(conversationId);
    this.#messages.delete(conversationId);
    this.#fire("list");
    await this.#guard(this.#store.remove(conversationId));
  }

  /** Writes down what the running answers have so far; for a page that is about to go away. */
  saveRunning() {
    for (const message of this.#answers.keys()) this.#update(message);
  }

  #begin(text) {
    const line = text.trim().split("\n", 1)[0];
    const title = line.length > TITLE_LENGTH ? `${line.slice(0, TITLE_LENGTH - 1).trimEnd()}…` : line;
    const now = Date.now();
    const conversation = { id: newId(), title, created: now, updated: now, head: null };
    this.#conversations.set(conversation.id, conversation);
    this.#messages.set(conversation.id, []);
    return conversation;
  }

  #add(conversation, fields) {
    const message = { id: newId(), conversation: conversation.id, created: Date.now(), ...fields };
    this.#messages.get(conversation.id).push(message);
    conversation.head = message.id;
    conversation.updated = message.created;
    void this.#guard(this.#store.save(conversation, message));
    return message;
  }

  #answer(conversation, question) {
    const input = toInput(pathTo(question.id, this.#messages.get(conversation.id)));
    const message = this.#add(conversation, {
      role: "assistant",
      text: "",
      parent: question.id,
      status: Status.QUEUED,
      error: null,
      stats: null,
    });
    const answer = this.#wire.respond({ input, ...(this.model && { model: this.model }), ...SAMPLING });
    void this.#collect(message, answer, statsOf);
    this.#fire("list");
    this.#fire("path", { conversationId: conversation.id });
  }

  #takeUp(message) {
    if (message.responseId) {
      const answer = this.#wire.resume(message.responseId, { after: message.sequence });
      void this.#collect(message, answer, statsOfRest);
    } else {
      // Its page went away before the server had said what it is called.
      message.status = Status.INTERRUPTED;
    }
  }

  /** Keeps a message as its answer grows. Its text goes on from what it has; `stats` is asked at the end. */
  async #collect(message, answer, stats) {
    const before = message.text;
    // The text and the number up to which it is known must not be kept apart.
    const note = () => {
      message.text = before + answer.text;
      message.sequence = answer.sequence;
      message.status = answer.status;
    };
    this.#answers.set(message, answer);
    note();
    answer.addEventListener("state", () => {
      if (answer.isFinal) return;
      note();
      if (answer.responseId && message.responseId !== answer.responseId) {
        message.responseId = answer.responseId;
        this.#update(message);
      }
      this.#fire("text", { message });
    });
    let saving = null;
    for await (const _ of answer) {
      if (answer.isFinal) break;
      note();
      this.#fire("text", { message });
      if (saving === null) {
        this.#update(message);
        saving = setTimeout(() => {
          saving = null;
          this.#update(message);
        }, SAVE_EVERY_MS);
      }
    }
    clearTimeout(saving);
    this.#answers.delete(message);
    note();
    message.error = GONE.has(answer.error?.code) ? { ...answer.error, message: GONE_MESSAGE } : answer.error;
    message.stats = stats(answer);
    this.#update(message);
    this.#fire("settled", { message });
    this.#fire("list");
  }

  #update(message) {
    // An answer may outlive its conversation by the moment between its removal and the server's last word.
    if (this.has(message.conversation)) void this.#guard(this.#store.update(message));
  }

  async #guard(writing) {
    try {
      await writing;
    } catch (error) {
      this.#fire("trouble", { error });
    }
  }

  #fire(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }
}

/**
 * The messages as the server reads them. The whole conversation goes out each time: what a server remembers is
 * bounded and lost when it restarts. Questions that got no text are joined, since templates want roles in turn.
 */
export function toInput(path) {
  const input = [];
  for (const { role, text } of path) {
    if (!text) continue;
    const last = input.at(-1);
    if (last?.role === role) last.content += `\n\n${text}`;
    else input.push({ role, content: text });
  }
  return input;
}

/** What the reader saw: the server counts the tokens, this side measures the time. */
function statsOf({ usage, times }) {
  const tokens = usage?.output_tokens ?? null;
  const span = times.last - times.first;
  return {
    tokens,
    firstTokenMs: times.first === null ? null : times.first - times.sent,
    // The first token ends the wait; the rate is that of those after it.
    tokensPerSecond: tokens > 1 && span > 0 ? (1000 * (tokens - 1)) / span : null,
  };
}

/** Of an answer that was taken up: how it began was not seen. */
function statsOfRest(answer) {
  return { ...statsOf(answer), firstTokenMs: null, tokensPerSecond: null };
}
