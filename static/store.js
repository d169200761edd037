/**
 * Conversations that outlive the page, in IndexedDB.
 *
 * Knows records: a conversation is a tree of messages, each naming its parent; `head` is the leaf that is shown,
 * and the way from it to the root is the conversation as read. It does not know who writes or shows them.
 *
 *     conversation  {id, title, created, updated, head}
 *     message       {id, conversation, parent, role: "user" | "assistant", text, created, status?, error?, stats?}
 *
 * Times are milliseconds since 1970.
 */

const NAME = "tickwire";
const VERSION = 1;

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

/** Opens the store; where the browser keeps nothing, one that lasts as long as the page (`lasting` is false). */
export async function openStore() {
  try {
    const opening = indexedDB.open(NAME, VERSION);
    opening.onupgradeneeded = () => {
      opening.result.createObjectStore("conversations", { keyPath: "id" });
      opening.result.createObjectStore("messages", { keyPath: "id" }).createIndex("conversation", "conversation");
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

  constructor(db) {
    this.#db = db;
    // Another tab with a newer page may need to change the database; holding it would block that tab.
    db.onversionchange = () => db.close();
  }

  /** All conversations, the one written to last first. */
  async conversations() {
    const all = await settled(this.#db.transaction("conversations").objectStore("conversations").getAll());
    return all.sort((a, b) => b.updated - a.updated);
  }

  /** All messages of one conversation, in no order. */
  messages(conversationId) {
    const index = this.#db.transaction("messages").objectStore("messages").index("conversation");
    return settled(index.getAll(conversationId));
  }

  /** Writes a conversation and some of its messages in one transaction. */
  save(conversation, ...messages) {
    const transaction = this.#db.transaction(["conversations", "messages"], "readwrite");
    transaction.objectStore("conversations").put(conversation);
    for (const message of messages) transaction.objectStore("messages").put(message);
    // A page that is going away may not live to see its transaction commit by itself.
    transaction.commit();
    return committed(transaction);
  }

  /**
   * Removes a conversation with all its messages. The conversation goes in a transaction of its own, committed at
   * once as in `save`: finding the messages takes a step more, and what a page that goes away did not finish is
   * undone. Messages left without a conversation are never shown.
   */
  async remove(conversationId) {
    const removal = this.#db.transaction("conversations", "readwrite");
    removal.objectStore("conversations").delete(conversationId);
    removal.commit();
    const sweep = this.#db.transaction("messages", "readwrite");
    const messages = sweep.objectStore("messages");
    const keys = messages.index("conversation").getAllKeys(conversationId);
    keys.onsuccess = () => keys.result.forEach((key) => messages.delete(key));
    await Promise.all([committed(removal), committed(sweep)]);
  }
}

class PassingStore {
  lasting = false;
  #conversations = new Map();
  #messages = new Map();

  async conversations() {
    return [...this.#conversations.values()].sort((a, b) => b.updated - a.updated);
  }

  async messages(conversationId) {
    return [...this.#messages.values()].filter((message) => message.conversation === conversationId);
  }

  async save(conversation, ...messages) {
    this.#conversations.set(conversation.id, { ...conversation });
    for (const message of messages) this.#messages.set(message.id, { ...message });
  }

  async remove(conversationId) {
    this.#conversations.delete(conversationId);
    for (const message of await this.messages(conversationId)) this.#messages.delete(message.id);
  }
}

/** The messages from the root down to `head`: the conversation as it is read. */
export function pathTo(head, messages) {
  const byId = new Map(messages.map((message) => [message.id, message]));
  const path = [];
  for (let message = byId.get(head); message; message = byId.get(message.parent)) path.unshift(message);
  return path;
}
