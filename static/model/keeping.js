/**
 * Keeps what changes in conversations, and tells the other tabs once it is kept.
 *
 * Knows the store, the tabs, and what of this tab's changes the store does not have yet. It does not know what they
 * mean. What the store refuses to keep is told, and holds in this tab alone.
 */

export class Keeping {
  #store;
  #tabs;
  #ontrouble;
  /** Ids of messages that the store does not have yet, or has refused. */
  #unsaved = new Set();
  /** Conversation id -> how often this tab has changed it. */
  #changes = new Map();

  /** @param ontrouble called with the error when the store refused something */
  constructor(store, tabs, ontrouble) {
    this.#store = store;
    this.#tabs = tabs;
    this.#ontrouble = ontrouble;
  }

  /** {conversation, messages} as the store has it, with all that this tab has changed; undefined: it is not there. */
  async read(conversationId) {
    const changes = this.#changes.get(conversationId);
    const stored = await this.#store.read(conversationId);
    // What was changed while it was read may be missing in what was read.
    return changes === this.#changes.get(conversationId) ? stored : this.read(conversationId);
  }

  isUnsaved(message) {
    return this.#unsaved.has(message.id);
  }

  /** A conversation that is new here, with messages. */
  add(conversation, messages) {
    return this.#keep(conversation.id, this.#store.add(conversation, messages), messages);
  }

  /** Conversations from elsewhere, [{conversation, messages}]: all of them or none. */
  async addAll(entries) {
    const writing = this.#store.addAll(entries);
    await Promise.all(entries.map(({ conversation, messages }) => this.#keep(conversation.id, writing, messages)));
  }

  /** Fields of a conversation, and messages that it got or lost; see the store. */
  change(conversation, fields, { added = [], removed = [] } = {}) {
    return this.#keep(conversation.id, this.#store.change(conversation, fields, { added, removed }), added);
  }

  remove(conversationId) {
    return this.#keep(conversationId, this.#store.remove(conversationId));
  }

  /** What an answer is now. */
  async update(message) {
    await this.#settled(message.conversation, this.#store.update(message));
  }

  /** What answers are now, and all that is not kept yet, for a page that is about to go away. */
  async writeAtOnce(answers) {
    try {
      await this.#store.writeAtOnce(answers);
    } catch (error) {
      this.#ontrouble(error);
    }
  }

  async #keep(conversationId, writing, added = []) {
    this.#changes.set(conversationId, (this.#changes.get(conversationId) ?? 0) + 1);
    for (const { id } of added) this.#unsaved.add(id);
    const isKept = await this.#settled(conversationId, writing);
    if (isKept) for (const { id } of added) this.#unsaved.delete(id);
  }

  /** @returns {Promise<boolean>} whether the store has it */
  async #settled(conversationId, writing) {
    try {
      await writing;
    } catch (error) {
      this.#ontrouble(error);
      return false;
    }
    this.#tabs.tell(conversationId);
    return true;
  }
}
