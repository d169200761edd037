/**
 * What the tabs of one browser tell each other: that a conversation has changed, and is to be read from the store
 * again; and which of them asks for an answer. Knows a BroadcastChannel. It does not know what changed.
 */

const NAME = "tickwire";
// A tab that lives replies within a few milliseconds; one that is closed, or sleeps, never does.
const REPLIES_WITHIN_MS = 500;

export class Tabs {
  #channel = new BroadcastChannel(NAME);
  /** Message id -> who wait to hear whether another tab writes it. */
  #asking = new Map();

  /**
   * @param onchanged called with a conversation's id when another tab has changed it, or removed it
   * @param isWriting tells for a message's id whether this tab writes that message
   */
  listen(onchanged, isWriting) {
    this.#channel.onmessage = ({ data: { changed, who, writes } }) => {
      if (changed) onchanged(changed);
      if (who && isWriting(who)) this.#channel.postMessage({ writes: who });
      if (writes) this.#asking.get(writes)?.resolve(true);
    };
  }

  /** To be called when the store has the change. */
  tell(conversationId) {
    this.#channel.postMessage({ changed: conversationId });
  }

  /** @returns {Promise<boolean>} whether another tab writes this message; soon. */
  isWritten(messageId) {
    const known = this.#asking.get(messageId);
    if (known) return known.promise;
    const asking = Promise.withResolvers();
    this.#asking.set(messageId, asking);
    const patience = setTimeout(() => asking.resolve(false), REPLIES_WITHIN_MS);
    this.#channel.postMessage({ who: messageId });
    return asking.promise.finally(() => {
      clearTimeout(patience);
      this.#asking.delete(messageId);
    });
  }
}
