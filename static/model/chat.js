/**
 * Conversations at work: asks, collects, keeps.
 *
 * Knows the store, the socket client and the other tabs, and which answer is running in which conversation. An
 * answer belongs to its conversation, not to what is on screen. It does not know the page: it fires events, and views
 * listen.
 *
 *     list      the conversations, their order or their titles changed
 *     path      the messages of a conversation changed        detail: {conversationId}
 *     text      an answer grew, or its state changed          detail: {message}
 *     settled   an answer is final                            detail: {message}
 *     trouble   the store refused to keep something           detail: {error}
 */

import { newId } from "./store.js";
import { FIRST_SETUP, requestOf } from "./setup.js";
import { branchFrom, newestLeaf, pathTo, siblingsOf, toInput } from "./tree.js";
import { Status } from "../tickwire.js";
import { text as say } from "../texts.js";

const SAVE_EVERY_MS = 500;
const TITLE_LENGTH = 60;
const RUNNING = [Status.QUEUED, Status.SENT, Status.STREAMING];
// What the server says of a response that cannot be taken up is meant for those who write clients.
const GONE = new Set(["response_gone", "response_not_found"]);

/** Whether an answer may still grow. */
export function isRunning(message) {
  return RUNNING.includes(message.status);
}

export class Chat extends EventTarget {
  #store;
  #wire;
  #tabs;
  #conversations = new Map();
  /** Conversation id -> its tree, of those that were opened. */
  #trees = new Map();
  /** Message that is being written -> the Answer that writes it. */
  #answers = new Map();

  constructor(store, wire, tabs) {
    super();
    this.#store = store;
    this.#wire = wire;
    this.#tabs = tabs;
    tabs.listen((conversationId) => this.#readAgain(conversationId));
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

  // -- looking ----------------------------------------------------------------------------------------------

  /** All conversations, the pinned ones and then those written to last first. */
  get list() {
    return [...this.#conversations.values()].sort(
      (a, b) => Boolean(b.pinned) - Boolean(a.pinned) || b.updated - a.updated,
    );
  }

  has(conversationId) {
    return this.#conversations.has(conversationId);
  }

  /** The conversation's record; undefined: there is none. */
  get(conversationId) {
    return this.#conversations.get(conversationId);
  }

  /** The messages of a conversation as it is read, from the first to the last. */
  async open(conversationId) {
    if (!this.#trees.has(conversationId)) {
      const stored = await this.#store.read(conversationId);
      // While the store was read, another call may have read it, too.
      if (stored && !this.#trees.has(conversationId)) {
        this.#trees.set(conversationId, new Map());
        this.#merge(stored);
      }
    }
    return this.path(conversationId);
  }

  /** As `open`, for a conversation that is open already. */
  path(conversationId) {
    const conversation = this.#conversations.get(conversationId);
    return conversation ? pathTo(conversation.head, this.#tree(conversationId)) : [];
  }

  /** The messages that stand in this one's place, itself among them, the oldest first. */
  siblings(message) {
    return siblingsOf(message, this.#tree(message.conversation));
  }

  /** The answer that runs in a conversation as it is read, if one does. */
  running(conversationId) {
    return this.path(conversationId).find(isRunning) ?? null;
  }

  isBusy(conversationId) {
    return this.running(conversationId) !== null;
  }

  /** The socket client's Answer that writes a message; undefined: none does. */
  answer(message) {
    return this.#answers.get(message);
  }

  /** What the next question of a conversation would be asked with. */
  input(conversationId, text) {
    return toInput([...this.path(conversationId), { role: "user", text }]);
  }

  // -- asking -----------------------------------------------------------------------------------------------

  /** Asks in a conversation, or in a new one (null), which has this setup. Returns the conversation's id. */
  ask(conversationId, text, setup) {
    const conversation = this.#conversations.get(conversationId) ?? this.#begin(text, setup);
    this.#answerTo(this.#add(conversation, { role: "user", text, parent: conversation.head }));
    return conversation.id;
  }

  /** Asks something else in a question's place; what was said there stays beside it. */
  edit(question, text) {
    const conversation = this.#conversations.get(question.conversation);
    this.#answerTo(this.#add(conversation, { role: "user", text, parent: question.parent }));
  }

  /** Answers once more what an answer has answered; the earlier answer stays beside it. */
  regenerate(answer) {
    this.#answerTo(this.#tree(answer.conversation).get(answer.parent));
  }

  /** Goes on with an answer that ended early, from its last word. */
  continue(answer) {
    this.#write(answer);
    this.#update(answer);
    this.#tabs.tell(answer.conversation);
    this.#fire("list");
    this.#fire("path", { conversationId: answer.conversation });
  }

  stop(conversationId) {
    const message = this.running(conversationId);
    if (message) this.#answers.get(message)?.stop();
  }

  // -- changing ---------------------------------------------------------------------------------------------

  /** Shows the branch that this message is part of, where it was left last. */
  choose(message) {
    this.#change(message.conversation, { head: newestLeaf(message, this.#tree(message.conversation)).id });
    this.#fire("path", { conversationId: message.conversation });
  }

  rename(conversationId, title) {
    this.#change(conversationId, { title });
  }

  pin(conversationId, pinned) {
    this.#change(conversationId, { pinned });
  }

  /** Changes how the conversation's next questions are answered. */
  setUp(conversationId, setup) {
    this.#change(conversationId, { setup });
  }

  /** Removes a message and all that hangs on it. With its last message a conversation goes. */
  async removeBranch(message) {
    const { conversation: id, parent } = message;
    const tree = this.#tree(id);
    const branch = branchFrom(message, tree);
    for (const each of branch) this.#answers.get(each)?.stop();
    for (const each of branch) tree.delete(each.id);
    if (!tree.size) return this.remove(id);
    const conversation = this.#conversations.get(id);
    if (!tree.has(conversation.head)) {
      const from = siblingsOf(message, tree).at(-1) ?? tree.get(parent);
      conversation.head = newestLeaf(from, tree).id;
    }
    this.#fire("path", { conversationId: id });
    this.#fire("list");
    await this.#keep(id, this.#store.save(conversation, { removed: branch.map((each) => each.id) }));
  }

  async remove(conversationId) {
    for (const message of this.#tree(conversationId).values()) this.#answers.get(message)?.stop();
    this.#forget(conversationId);
    await this.#keep(conversationId, this.#store.remove(conversationId));
  }

  /** Takes in conversations that were exported somewhere: [{conversation, messages}], with ids of their own. */
  async addAll(entries) {
    for (const { conversation, messages } of entries) {
      this.#conversations.set(conversation.id, conversation);
      await this.#keep(conversation.id, this.#store.save(conversation, { messages }));
    }
    this.#fire("list");
  }

  /** Writes down what the running answers have so far; for a page that is about to go away. */
  saveRunning() {
    for (const message of this.#answers.keys()) this.#update(message);
  }

  #begin(text, setup) {
    const line = text.trim().split("\n", 1)[0];
    const title = line.length > TITLE_LENGTH ? `${line.slice(0, TITLE_LENGTH - 1).trimEnd()}…` : line;
    const now = Date.now();
    const conversation = { id: newId(), title, created: now, updated: now, head: null, pinned: false, setup };
    this.#conversations.set(conversation.id, conversation);
    this.#trees.set(conversation.id, new Map());
    return conversation;
  }

  #add(conversation, fields) {
    const message = { id: newId(), conversation: conversation.id, created: Date.now(), ...fields };
    this.#tree(conversation.id).set(message.id, message);
    conversation.head = message.id;
    conversation.updated = message.created;
    void this.#keep(conversation.id, this.#store.save(conversation, { messages: [message] }));
    return message;
  }

  #change(conversationId, fields) {
    const conversation = Object.assign(this.#conversations.get(conversationId), fields);
    this.#fire("list");
    void this.#keep(conversationId, this.#store.save(conversation));
  }

  #forget(conversationId) {
    this.#conversations.delete(conversationId);
    this.#trees.delete(conversationId);
    this.#fire("list");
  }

  // -- answers ----------------------------------------------------------------------------------------------

  #answerTo(question) {
    const conversation = this.#conversations.get(question.conversation);
    const fields = { text: "", status: Status.QUEUED, error: null, stats: null };
    this.#write(this.#add(conversation, { role: "assistant", parent: question.id, ...fields }));
    this.#fire("list");
    this.#fire("path", { conversationId: conversation.id });
  }

  /** Asks for a message's text, from what it has on. */
  #write(message) {
    // Conversations of older pages have none.
    const { setup = FIRST_SETUP } = this.#conversations.get(message.conversation);
    const input = toInput(pathTo(message.id, this.#tree(message.conversation)));
    const request = { input, ...requestOf(setup), ...(message.text && { continue_final_message: true }) };
    Object.assign(message, { responseId: null, sequence: -1, error: null });
    void this.#collect(message, this.#wire.respond(request), statsOf);
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
        this.#update(message, { tell: true });
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
    message.error = GONE.has(answer.error?.code) ? { ...answer.error, message: say("answer.gone") } : answer.error;
    message.stats = stats(answer);
    this.#update(message, { tell: true });
    this.#fire("settled", { message });
    this.#fire("list");
  }

  #update(message, { tell = false } = {}) {
    // An answer may outlive its place by the moment between its removal and the server's last word.
    if (!this.#tree(message.conversation).has(message.id)) return;
    const writing = this.#store.update(message);
    void (tell ? this.#keep(message.conversation, writing) : this.#guard(writing));
  }

  // -- the store and the other tabs -------------------------------------------------------------------------

  #tree(conversationId) {
    return this.#trees.get(conversationId) ?? new Map();
  }

  async #readAgain(conversationId) {
    const stored = await this.#store.read(conversationId);
    if (!stored) {
      this.#forget(conversationId);
    } else if (this.#trees.has(conversationId)) {
      this.#merge(stored);
    } else {
      this.#conversations.set(conversationId, stored.conversation);
      this.#fire("list");
    }
    this.#fire("path", { conversationId });
  }

  /** Another tab's words, or the store's, beside what is being written here. */
  #merge({ conversation, messages }) {
    const tree = this.#tree(conversation.id);
    const known = this.#conversations.get(conversation.id);
    if (known) Object.assign(known, conversation);
    else this.#conversations.set(conversation.id, conversation);
    const stored = new Set(messages.map(({ id }) => id));
    for (const id of [...tree.keys()]) if (!stored.has(id)) tree.delete(id);
    for (const record of messages) {
      const message = tree.get(record.id) ?? record;
      tree.set(record.id, message);
      if (this.#answers.has(message)) continue;
      Object.assign(message, record);
      if (isRunning(message)) this.#takeUp(message);
    }
    this.#fire("list");
  }

  async #keep(conversationId, writing) {
    await this.#guard(writing);
    this.#tabs.tell(conversationId);
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
