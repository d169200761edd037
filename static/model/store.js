/**
 * Conversations that outlive the page, in IndexedDB.
 *
 * Knows records; it does not know who writes or shows them. A conversation is a tree of messages (tree.js), `head` the
 * leaf that is shown.
 *
 *     conversation  {id, title, created, updated, head, pinned?, setup}      setup: see setup.js
 *     message       {id, conversation, parent, role: "user" | "assistant", text, created, status?, error?, stats?,
 *                    responseId?, sequence?, grown?, asked?, continued?}
 *
 * Times are milliseconds since 1970. With `responseId` and `sequence`, the number of the last event in `text`, an
 * answer that runs can be taken up again. `grown`: when it last did, or was asked for. `asked`: how often it was asked
 * for (message.js), and `continued`, how often of these it had text already and went on from it. `stats`: see stats.js.
 */

import { askedAnew, hasJustGrown, isFurther, isRunning, timesAsked } from "./message.js";

const NAME = "tickwire";
const VERSION = 2;
const READ_AT_ONCE = 500;

/** An id that also works where crypto.randomUUID does not: on a page served over plain http from another host. */
export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function settled(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

function committed(transaction) {
  return new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve();
    transaction.onabort = () => reject(transaction.error);
  });
}

/** What becomes of the wish to ask anew for `message`, of which `record` is kept. */
function claimOn(record, message) {
  // Removed, or never kept: whoever has it is alone with it.
  if (!record) return { won: true, isKept: false, record: askedAnew(message) };
  if (timesAsked(record) !== timesAsked(message) || isRunning(record) !== isRunning(message)) {
    return { won: false, isKept: false, record };
  }
  return { won: true, isKept: true, record: askedAnew(isFurther(record, message) ? record : message) };
}

/** Opens the store; where the browser keeps nothing, one that lasts as long as the page (`lasting` is false). */
export async function openStore() {
  try {
    const opening = indexedDB.open(NAME, VERSION);
    opening.onupgradeneeded = ({ oldVersion }) => {
      if (oldVersion < 1) {
        opening.result.createObjectStore("conversations", { keyPath: "id" });
        opening.result.createObjectStore("messages", { keyPath: "id" }).createIndex("conversation", "conversation");
      }
      if (oldVersion < 2) opening.transaction.objectStore("messages").createIndex("status", "status");
    };
    return new LastingStore(await settled(opening));
  } catch (error) {
    console.warn("Conversations cannot be kept in this browser:", error);
    return new PassingStore();
  }
}

class LastingStore {
  lasting = true;
  #db;
  /** Transactions that are still comparing, each with what it would write without a look. */
  #comparing = new Map();
  /** Those that were given up, as a page that goes away has written the same at once. */
  #givenUp = new WeakSet();

  constructor(db) {
    this.#db = db;
    // Another tab with a newer page may need to change the database; holding it would block that tab.
    db.onversionchange = () => db.close();
  }

  /** All conversations, in no order. */
  conversations() {
    return settled(this.#db.transaction("conversations").objectStore("conversations").getAll());
  }

  /** One conversation and its messages, the latter in no order; undefined: it was removed, or never was. */
  async read(conversationId) {
    const transaction = this.#db.transaction(["conversations", "messages"]);
    const [conversation, messages] = await Promise.all([
      settled(transaction.objectStore("conversations").get(conversationId)),
      settled(transaction.objectStore("messages").index("conversation").getAll(conversationId)),
    ]);
    return conversation && { conversation, messages };
  }

  /** All messages, for a search. They are read in parts: the page would stand still while it unpacks them all. */
  async messages() {
    const records = this.#db.transaction("messages").objectStore("messages");
    const parts = [];
    for (let from = null; ; from = IDBKeyRange.lowerBound(parts.at(-1).at(-1).id, true)) {
      parts.push(await settled(records.getAll(from, READ_AT_ONCE)));
      if (parts.at(-1).length < READ_AT_ONCE) return parts.flat();
    }
  }

  /** All messages whose status is one of these, in no order. */
  async withStatus(statuses) {
    const index = this.#db.transaction("messages").objectStore("messages").index("status");
    return (await Promise.all(statuses.map((status) => settled(index.getAll(status))))).flat();
  }

  /** Writes a conversation that is new, with messages. */
  add(conversation, messages) {
    return this.addAll([{ conversation, messages }]);
  }

  /** As `add`, several, [{conversation, messages}]: all of them or none. */
  addAll(entries) {
    return this.#write(async (conversations, records) => {
      for (const { conversation, messages } of entries) {
        conversations.put(conversation);
        for (const message of messages) records.put(message);
      }
    });
  }

  /**
   * Changes fields of a conversation, which `conversation` has already, adds messages and removes some. What another
   * tab has changed stays, and what it has removed does not come back.
   */
  change(conversation, fields, { added = [], removed = [] } = {}) {
    const write = (conversations, records, changed) => {
      conversations.put(changed);
      for (const message of added) records.put(message);
      for (const id of removed) records.delete(id);
    };
    const compare = async (conversations, records) => {
      const kept = await settled(conversations.get(conversation.id));
      if (kept) write(conversations, records, { ...kept, ...fields });
    };
    return this.#write(compare, (conversations, records) => write(conversations, records, conversation));
  }

  /** Writes what an answer is now, unless it was removed, or another tab is further with it. */
  update(message) {
    const compare = async (_, records) => {
      const kept = await settled(records.get(message.id));
      if (kept && !isFurther(kept, message)) records.put(message);
    };
    return this.#write(compare, (_, records) => hasJustGrown(message) && records.put(message));
  }

  /**
   * Writes these answers, and all that is being compared, as this page has it. For a page that goes away: it does not
   * live to hear what is kept, and whatever still waits would take this with it.
   */
  writeAtOnce(answers) {
    const writes = [...this.#comparing.values()];
    for (const transaction of this.#comparing.keys()) {
      this.#givenUp.add(transaction);
      transaction.abort();
    }
    return this.#write(async (conversations, records) => {
      for (const write of writes) write(conversations, records);
      for (const answer of answers) records.put(answer);
    });
  }

  /**
   * Writes that an answer is asked for anew, unless another tab has been faster, or has ended it.
   * @returns {Promise<{won: boolean, record: object}>} and what is kept now
   */
  claim(message) {
    return this.#write(async (_, records) => {
      const claim = claimOn(await settled(records.get(message.id)), message);
      if (claim.isKept) records.put(claim.record);
      return claim;
    });
  }

  /**
   * Removes a conversation with all its messages. The conversation goes in a transaction of its own, committed at
   * once: finding the messages takes a step more, and what a page that goes away did not finish is undone. Messages
   * left without a conversation are never shown.
   */
  async remove(conversationId) {
    const removal = this.#db.transaction("conversations", "readwrite");
    removal.objectStore("conversations").delete(conversationId);
    removal.commit();
    const sweep = async (_, records) => {
      const keys = await settled(records.index("conversation").getAllKeys(conversationId));
      for (const key of keys) records.delete(key);
    };
    const swept = this.#write(sweep, (conversations) => conversations.delete(conversationId));
    await Promise.all([committed(removal), swept]);
  }

  /**
   * @param act writes, and may compare before
   * @param atOnce writes the same without a look, if that can be
   * @returns what `act` gives, when it is safe
   */
  async #write(act, atOnce = null) {
    const transaction = this.#db.transaction(["conversations", "messages"], "readwrite");
    if (atOnce) this.#comparing.set(transaction, atOnce);
    const acting = act(transaction.objectStore("conversations"), transaction.objectStore("messages")).then((result) => {
      this.#comparing.delete(transaction);
      // A page that is going away may not live to see its transaction commit by itself.
      transaction.commit();
      return result;
    });
    try {
      const [result] = await Promise.all([acting, committed(transaction)]);
      return result;
    } catch (error) {
      if (this.#givenUp.has(transaction)) return undefined;
      throw error;
    } finally {
      this.#comparing.delete(transaction);
    }
  }
}

class PassingStore {
  lasting = false;
  #conversations = new Map();
  #messages = new Map();

  async conversations() {
    return [...this.#conversations.values()];
  }

  async read(conversationId) {
    const conversation = this.#conversations.get(conversationId);
    const messages = (await this.messages()).filter((message) => message.conversation === conversationId);
    return conversation && { conversation, messages };
  }

  async messages() {
    return [...this.#messages.values()];
  }

  async withStatus(statuses) {
    return (await this.messages()).filter((message) => statuses.includes(message.status));
  }

  async add(conversation, messages) {
    await this.addAll([{ conversation, messages }]);
  }

  async addAll(entries) {
    for (const { conversation, messages } of entries) {
      this.#conversations.set(conversation.id, { ...conversation });
      for (const message of messages) this.#messages.set(message.id, { ...message });
    }
  }

  async change({ id: conversationId }, fields, { added = [], removed = [] } = {}) {
    const conversation = this.#conversations.get(conversationId);
    if (!conversation) return;
    await this.add({ ...conversation, ...fields }, added);
    for (const id of removed) this.#messages.delete(id);
  }

  async update(message) {
    if (this.#messages.has(message.id)) this.#messages.set(message.id, { ...message });
  }

  async writeAtOnce() {
    // All of it goes with the page.
  }

  async claim(message) {
    const claim = claimOn(this.#messages.get(message.id), message);
    if (claim.isKept) this.#messages.set(message.id, claim.record);
    return claim;
  }

  async remove(conversationId) {
    const { messages = [] } = (await this.read(conversationId)) ?? {};
    this.#conversations.delete(conversationId);
    for (const { id } of messages) this.#messages.delete(id);
  }
}
