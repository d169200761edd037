/**
 * What the tabs of one browser tell each other: that a conversation has changed, and is to be read from the store
 * again. Knows a BroadcastChannel. It does not know what changed.
 */

const NAME = "tickwire";

export class Tabs {
  #channel = new BroadcastChannel(NAME);

  /** @param onchanged called with a conversation's id when another tab has changed it, or removed it */
  listen(onchanged) {
    this.#channel.onmessage = ({ data }) => onchanged(data.changed);
  }

  /** To be called when the store has the change. */
  tell(conversationId) {
    this.#channel.postMessage({ changed: conversationId });
  }
}
