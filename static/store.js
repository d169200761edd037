/**
 * Conversations that outlive the page, in IndexedDB.
 *
 * Knows records: a conversation is a tree of messages, each naming its parent; `head` is the leaf that is shown,
 * and the way from it to the root is the conversation as read. It does not know who writes or shows them.
 *
 *     conversation  {id, title, created, updated, head}
 *     message       {id, conversation, parent, role: "user" | "assistant", text, created, status?, error?, stats?,
 *                    responseId?, sequence?}
 *
 * Times are milliseconds since 1970. With `responseId` and `sequence`, the number of the last event in `text`, an
 * answer that runs can be taken up again.
 */

const NAME = "tickwire";
const VERSION = 2;

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

  /** All messages whose status is one of these, in no order. */
  async withStatus(statuses) {
    const index = this.#db.transaction("messages").objectStore("messages").index("status");
    return (await Promise.all(statuses.map((status) => settled(index.getAll(status))))).flat();
  }

  /** Writes a conversation and its new message in one transaction. */
  save(conversation, message) {
    const transaction = this.#db.transaction(["conversations", "messages"], "readwrite");
    transaction.objectStore("conversations").put(conversation);
    transaction.objectStore("messages").put(message);
    // A page that is going away may not live to see its transaction commit by itself.
    transaction.commit();
    return committed(transaction);
  }

  /** Writes what a message is now. Its conversation is left alone: another tab may have carried it on. */
  update(message) {
    const transaction = this.#db.transaction("messages", "readwrite");
    transaction.objectStore("messages").put(message);
    transaction.commit(); // As in `save`.
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

  async withStatus(statuses) {
    return [...this.#messages.values()].filter((message) => statuses.includes(message.status));
  }

  async save(conversation, message) {
    this.#conversations.set(conversation.id, { ...conversation });
    this.#messages.set(message.id, { ...message });
  }

  async update(message) {
    this.#messages.set(message.id, { ...message });
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
