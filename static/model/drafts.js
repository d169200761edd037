/**
 * What was being written in each conversation, kept in localStorage. Knows text under names; null is the name of the
 * conversation that has not begun.
 */

const KEY = "tickwire.drafts";
const SAVE_AFTER_MS = 300;
// A browser gives a page some 5 million characters for everything.
const MAX_CHARACTERS = 500_000;

export class Drafts {
  /** Name -> text, of what is not written down yet. */
  #unsaved = new Map();
  #timer = null;

  constructor() {
    addEventListener("pagehide", () => this.#save());
  }

  get(conversationId) {
    const name = String(conversationId);
    return this.#unsaved.get(name) ?? read()[name] ?? "";
  }

  set(conversationId, text) {
    this.#unsaved.set(String(conversationId), text);
    this.#timer ??= setTimeout(() => this.#save(), SAVE_AFTER_MS);
  }

  /** Forgets those of conversations that are gone. */
  keepOnly(isThere) {
    const gone = Object.keys(read()).filter((name) => name !== "null" && !isThere(name));
    for (const name of gone) this.set(name, "");
  }

  /** Another tab may have written others, so they are read again. The newest are kept, as far as there is room. */
  #save() {
    clearTimeout(this.#timer);
    this.#timer = null;
    const drafts = { ...without(read(), this.#unsaved), ...Object.fromEntries(this.#unsaved) };
    this.#unsaved.clear();
    let room = MAX_CHARACTERS;
    const kept = Object.entries(drafts)
      .reverse()
      .filter(([, text]) => text && (room -= text.length) >= 0)
      .reverse();
    try {
      localStorage.setItem(KEY, JSON.stringify(Object.fromEntries(kept)));
    } catch {
      // Storage is blocked or full: drafts last as long as they are on screen.
    }
  }
}

/** So that what is written again comes behind what was not. */
function without(drafts, names) {
  return Object.fromEntries(Object.entries(drafts).filter(([name]) => !names.has(name)));
}

function read() {
  try {
    return JSON.parse(localStorage.getItem(KEY) ?? "{}");
  } catch {
    return {}; // Storage is blocked, or holds what a hand has written there.
  }
}
