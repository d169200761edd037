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
const RUNNING = new Set([Status.QUEUED, Status.SENT, Status.STREAMING]);

/** Whether an answer may still grow. */
export function isRunning(message) {
  return RUNNING.has(message.status);
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

  async load() {
    for (const conversation of await this.#store.conversations()) this.#conversations.set(conversation.id, conversation);
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
      for (const message of messages) {
        // It was being written when its page went away.
        if (isRunning(message)) message.status = Status.INTERRUPTED;
      }
      // While the store was read, a question may have begun this conversation's list.
      if (!this.#messages.has(conversationId)) this.#messages.set(conversationId, messages);
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
    for (const message of this.#answers.keys()) this.#save(message);
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
    this.#save(message);
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
    message.status = answer.status;
    answer.addEventListener("sent", () => {
      message.status = answer.status;
      this.#fire("text", { message });
    });
    this.#answers.set(message, answer);
    this.#fire("list");
    this.#fire("path", { conversationId: conversation.id });
    void this.#collect(message, answer);
  }

  async #collect(message, answer) {
    let saving = null;
    for await (const text of answer) {
      message.text += text;
      message.status = Status.STREAMING;
      this.#fire("text", { message });
      if (saving === null) {
        this.#save(message);
        saving = setTimeout(() => {
          saving = null;
          this.#save(message);
        }, SAVE_EVERY_MS);
      }
    }
    clearTimeout(saving);
    this.#answers.delete(message);
    message.status = answer.status;
    message.error = answer.error;
    message.stats = statsOf(answer);
    this.#save(message);
    this.#fire("settled", { message });
    this.#fire("list");
  }

  #save(message) {
    const conversation = this.#conversations.get(message.conversation);
    // An answer may outlive its conversation by the moment between its removal and the server's last word.
    if (conversation) void this.#guard(this.#store.save(conversation, message));
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
