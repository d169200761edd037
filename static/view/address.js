/**
 * What the address says, so that reload, back and a second tab each find theirs: `#c=<id>` is a conversation, `#engine`
 * the engine; without either the next conversation begins. Which one was open last is remembered beside it.
 *
 * It does not know which conversations there are: what it gives may be gone.
 */

const LAST_OPEN = "tickwire.open";
const ENGINE = "#engine";

export const address = {
  get isEngine() {
    return location.hash === ENGINE;
  },

  /** The id of a conversation, or null. */
  get conversation() {
    return location.hash.match(/^#c=(\w+)$/)?.[1] ?? null;
  },

  nameEngine() {
    name(ENGINE);
  },

  /** @param {string | null} id null: the next one */
  nameConversation(id) {
    name(id ? `#c=${id}` : "");
    try {
      if (id) localStorage.setItem(LAST_OPEN, id);
      else localStorage.removeItem(LAST_OPEN);
    } catch {
      // Storage is blocked: the address alone remembers.
    }
  },

  /** The id of the conversation that was open last, in any tab, or null. */
  get lastConversation() {
    try {
      return localStorage.getItem(LAST_OPEN);
    } catch {
      return null; // As above.
    }
  },
};

/** What the page begins with takes the place of what it was asked for: "back" must not lead to the same again. */
function name(hash) {
  if (location.hash === hash) return;
  const url = hash || location.pathname;
  if (document.body.dataset.ready) history.pushState(null, "", url);
  else history.replaceState(null, "", url);
}
