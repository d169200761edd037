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

import { excerpt } from "./excerpt.js";
import { Keeping } from "./keeping.js";
import { hasJustGrown, isAnswering, isFurther, isRunning, RUNNING, timesAsked } from "./message.js";
import { FIRST_SETUP, requestOf } from "./setup.js";
import { newId } from "./store.js";
import { branchFrom, newestLeaf, pathTo, siblingsAlong, siblingsOf, toInput } from "./tree.js";
import { isFresh, Writing } from "./writing.js";
import { Status } from "../tickwire.js";

const TITLE_LENGTH = 60;
// How often a tab looks whether the one that asks for an answer is still there.
const LOOK_EVERY_MS = 1000;

export class Chat extends EventTarget {
  #store;
  #wire;
  #tabs;
  #keeping;
  #conversations = new Map();
  /** Conversation id -> its tree, of those that were opened. */
  #trees = new Map();
  /** Message -> its Writing, of those that this tab writes. */
  #writings = new Map();
  /** Answers that run without a name, as another tab asks for them, or did. */
  #orphans = new Set();

  constructor(store, wire, tabs) {
    super();
    this.#store = store;
    this.#wire = wire;
    this.#tabs = tabs;
    const ontrouble = (error) => this.#fire("trouble", { error });
    this.#keeping = new Keeping(store, tabs, ontrouble);
    tabs.listen(
      (conversationId) => this.#readAgain(conversationId).catch(ontrouble),
      (messageId) => [...this.#writings.keys()].some(({ id }) => id === messageId),
    );
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
      const stored = await this.#keeping.read(conversationId);
      // Meanwhile another call may have read it, too.
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

  /** The siblings of each message of a path, as `path` gives it. */
  siblingsAlong(path) {
    return path.length ? siblingsAlong(path, this.#tree(path[0].conversation)) : [];
  }

  /** The answer that runs in a conversation as it is read, if one does. */
  running(conversationId) {
    return this.path(conversationId).find(isRunning) ?? null;
  }

  isBusy(conversationId) {
    return this.running(conversationId) !== null;
  }

  /** The socket client's Answer that is being written into a message, of this moment; undefined: none is. */
  answer(message) {
    return this.#writings.get(message)?.answer ?? undefined;
  }

  /** What the next question of a conversation would be asked with. */
  input(conversationId, text) {
    return toInput([...this.path(conversationId), { role: "user", text }]);
  }

  /** All that there is, for a search or an export: [{conversation, messages}], the messages in no order. */
  async everything() {
    const messages = Map.groupBy(await this.#store.messages(), ({ conversation }) => conversation);
    return this.list.map((conversation) => ({
      conversation,
      messages: (messages.get(conversation.id) ?? []).map((each) => this.#tree(conversation.id).get(each.id) ?? each),
    }));
  }

  /** One conversation with all its branches, as in `everything`. */
  async whole(conversationId) {
    await this.open(conversationId);
    return { conversation: this.get(conversationId), messages: [...this.#tree(conversationId).values()] };
  }

  // -- asking -----------------------------------------------------------------------------------------------

  /** Asks in a conversation, or in a new one (null), which has this setup. Returns the conversation's id. */
  ask(conversationId, text, setup) {
    const known = this.#conversations.get(conversationId);
    const conversation = known ?? this.#begin(text, setup);
    const { id } = conversation;
    if (this.#trees.has(id)) this.#ask(conversation, conversation.head, text, !known);
    // What was said before is still being read from the store, and belongs to the question.
    else void this.open(id).then(() => this.#trees.has(id) && this.ask(id, text, setup));
    return id;
  }

  /** Asks something else in a question's place; what was said there stays beside it. */
  edit(question, text) {
    this.#ask(this.#conversations.get(question.conversation), question.parent, text);
  }

  /** Answers once more what an answer has answered; the earlier answer stays beside it. */
  regenerate(answer) {
    if (!isAnswering(answer)) return;
    const successor = newAnswer(answer.conversation, answer.parent);
    this.#add(this.#conversations.get(answer.conversation), [successor]);
    void this.#writing(successor).write();
  }

  /** Goes on with an answer that ended early, from its last word. */
  continue(answer) {
    if (isRunning(answer)) return;
    void this.#writing(answer).writeOn();
    this.#fire("list");
    this.#fire("path", { conversationId: answer.conversation });
  }

  stop(conversationId) {
    const message = this.running(conversationId);
    if (!message) return;
    const writing = this.#writings.get(message);
    if (writing) writing.stop();
    else this.#settle(Object.assign(message, { status: Status.STOPPED }));
  }

  // -- changing ---------------------------------------------------------------------------------------------

  /** Shows the branch that this message is part of, where it was left last. */
  choose(message) {
    void this.#change(message.conversation, { head: newestLeaf(message, this.#tree(message.conversation)).id });
  }

  rename(conversationId, title) {
    void this.#change(conversationId, { title });
  }

  pin(conversationId, pinned) {
    void this.#change(conversationId, { pinned });
  }

  /** Changes how the conversation's next questions are answered. */
  setUp(conversationId, setup) {
    void this.#change(conversationId, { setup });
  }

  /** Removes a message and all that hangs on it. With its last message a conversation goes. */
  async removeBranch(message) {
    const { conversation: id, parent } = message;
    const tree = this.#tree(id);
    const branch = branchFrom(message, tree);
    for (const each of branch) this.#drop(each);
    if (!tree.size) return this.remove(id);
    const { head } = this.#conversations.get(id);
    const fields = {};
    if (!tree.has(head)) {
      const from = siblingsOf(message, tree).at(-1) ?? tree.get(parent);
      fields.head = newestLeaf(from, tree).id;
    }
    await this.#change(id, fields, { removed: branch.map((each) => each.id) });
  }

  async remove(conversationId) {
    this.#forget(conversationId);
    await this.#keeping.remove(conversationId);
  }

  async removeAll() {
    const ids = this.list.map(({ id }) => id);
    this.#forget(...ids);
    await Promise.all(ids.map((id) => this.#keeping.remove(id)));
  }

  /** Takes in conversations that were exported somewhere: [{conversation, messages}], with ids of their own. */
  async addAll(entries) {
    // What was being written when it was exported is written by nobody here.
    const still = (each) => (isRunning(each) ? { ...each, status: Status.INTERRUPTED } : each);
    const records = entries.map(({ conversation, messages }) => ({ conversation, messages: messages.map(still) }));
    for (const { conversation } of records) this.#conversations.set(conversation.id, conversation);
    await this.#keeping.addAll(records);
    this.#fire("list");
  }

  /** Writes down what is not kept yet; for a page that is about to go away. */
  saveAtOnce() {
    void this.#keeping.writeAtOnce([...this.#writings.keys()].filter(hasJustGrown));
  }

  #begin(text, setup) {
    const title = excerpt(text.trim().split("\n", 1)[0], TITLE_LENGTH);
    const now = Date.now();
    const conversation = { id: newId(), title, created: now, updated: now, head: null, pinned: false, setup };
    this.#conversations.set(conversation.id, conversation);
    this.#trees.set(conversation.id, new Map());
    return conversation;
  }

  #ask(conversation, parent, text, isNew = false) {
    const question = { ...newMessage(conversation.id, parent), role: "user", text };
    const answer = newAnswer(conversation.id, question.id);
    this.#add(conversation, [question, answer], isNew);
    void this.#writing(answer).write();
  }

  /** Adds messages, of which the last is what is shown from now on. */
  #add(conversation, messages, isNew = false) {
    const { id } = conversation;
    for (const message of messages) this.#tree(id).set(message.id, message);
    const { id: head, created: updated } = messages.at(-1);
    if (isNew) {
      Object.assign(conversation, { head, updated });
      void this.#keeping.add(conversation, messages);
      this.#fire("list");
    } else {
      void this.#change(id, { head, updated }, { added: messages });
    }
  }

  /** Changes fields of a conversation, and which messages it has: those are in its tree already, or no longer. */
  #change(id, fields, { added = [], removed = [] } = {}) {
    const conversation = this.#conversations.get(id);
    // While its reader thought about it, another tab may have removed it.
    if (!conversation) return Promise.resolve();
    Object.assign(conversation, fields);
    const keeping = this.#keeping.change(conversation, fields, { added, removed });
    this.#fire("list");
    if ("head" in fields || removed.length) this.#fire("path", { conversationId: id });
    return keeping;
  }

  #forget(...conversationIds) {
    for (const id of conversationIds) {
      for (const message of this.#tree(id).values()) this.#drop(message);
      this.#conversations.delete(id);
      this.#trees.delete(id);
    }
    this.#fire("list");
  }

  /** Takes a message out of its tree. */
  #drop(message) {
    this.#release(message);
    this.#tree(message.conversation).delete(message.id);
  }

  // -- answers ----------------------------------------------------------------------------------------------

  /** A new Writing of a message, which this tab writes from now on. */
  #writing(message) {
    const requestFor = () => ({
      input: toInput(pathTo(message.id, this.#tree(message.conversation))),
      // Conversations of older pages have no setup.
      ...requestOf(this.#conversations.get(message.conversation).setup ?? FIRST_SETUP),
      ...(message.text && { continue_final_message: true }),
    });
    const writing = new Writing(message, { wire: this.#wire, store: this.#store, requestFor });
    this.#writings.set(message, writing);
    // Once it is left, what it does is of no interest.
    const on = (type, act) =>
      writing.addEventListener(type, ({ detail }) => this.#writings.get(message) === writing && act(detail));
    on("text", () => this.#fire("text", { message }));
    on("known", () => this.#tabs.tell(message.conversation));
    on("trouble", (detail) => this.#fire("trouble", detail));
    on("settled", () => {
      this.#writings.delete(message);
      this.#settle(message);
    });
    on("overtaken", ({ record }) => this.#follow(message, record));
    return writing;
  }

  /** Leaves the writing of a message to others, or to nobody. */
  #release(message) {
    this.#writings.get(message)?.leave();
    this.#writings.delete(message);
  }

  /** Another tab has carried an answer on, or ended it. */
  #follow(message, record) {
    this.#release(message);
    Object.assign(message, record);
    if (isRunning(message)) this.#takeUp(message);
    else this.#fireSettled(message);
  }

  #takeUp(message) {
    if (message.responseId) void this.#writing(message).write();
    else if (!this.#orphans.has(message)) void this.#watchOver(message);
  }

  /** Waits for the tab that asks for an answer to say what it is called, and asks itself if that tab has gone. */
  async #watchOver(message) {
    const isOrphan = () =>
      this.#tree(message.conversation).get(message.id) === message &&
      isRunning(message) &&
      !message.responseId &&
      !this.#writings.has(message);
    this.#orphans.add(message);
    while (isOrphan() && (await this.#tabs.isWritten(message.id))) {
      await new Promise((resolve) => setTimeout(resolve, LOOK_EVERY_MS));
    }
    this.#orphans.delete(message);
    if (!isOrphan()) return;
    if (isFresh(message)) void this.#writing(message).writeOn();
    else this.#settle(Object.assign(message, { status: Status.INTERRUPTED }));
  }

  /** An answer has ended, with what it has now. */
  #settle(message) {
    void this.#keeping.update(message);
    this.#fireSettled(message);
  }

  #fireSettled(message) {
    this.#fire("settled", { message });
    this.#fire("list");
  }

  // -- what the store has -----------------------------------------------------------------------------------

  #tree(conversationId) {
    return this.#trees.get(conversationId) ?? new Map();
  }

  async #readAgain(conversationId) {
    const stored = await this.#keeping.read(conversationId);
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
    for (const message of [...tree.values()]) {
      if (!stored.has(message.id) && !this.#keeping.isUnsaved(message)) this.#drop(message);
    }
    for (const record of messages) {
      const message = tree.get(record.id);
      if (message) {
        this.#compare(message, record);
      } else {
        tree.set(record.id, record);
        if (isRunning(record)) this.#takeUp(record);
      }
    }
    this.#fire("list");
  }

  /** What the store has of a message that is known here. */
  #compare(message, record) {
    if (!isFurther(record, message)) return;
    const writing = this.#writings.get(message);
    if (!writing || timesAsked(record) > timesAsked(message)) this.#follow(message, record);
    else if (record.status === Status.STOPPED) writing.stop();
    // Else the server tells this tab, too.
  }

  #fire(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }
}

function newMessage(conversation, parent) {
  return { id: newId(), conversation, parent, created: Date.now() };
}

function newAnswer(conversation, parent) {
  const fields = { role: "assistant", text: "", status: Status.QUEUED, error: null, stats: null };
  return { ...newMessage(conversation, parent), ...fields, responseId: null, sequence: -1, asked: 1 };
}
