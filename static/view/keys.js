/**
 * The keyboard: which keys do what, anywhere on the page. Knows combinations of keys; what they do is told to it.
 *
 * A combination is written "mod+shift+o"; `mod` is Ctrl, or the command key of a Mac.
 */

const isMac = /mac|iphone|ipad/i.test(navigator.userAgentData?.platform ?? navigator.platform);

export class Keys {
  /** Combination -> {text, act}, in the order in which they are explained. */
  shortcuts = new Map();

  constructor(target = window) {
    target.addEventListener("keydown", (event) => this.#pressed(event));
  }

  /**
   * @param {string} combination
   * @param {string} text key of the text that says what it does
   * @param {() => boolean | void} act false: nothing was to be done, and the browser may have the key
   */
  on(combination, text, act) {
    this.shortcuts.set(combination, { text, act });
  }

  #pressed(event) {
    // Keys of an input method belong to it.
    if (event.defaultPrevented || event.isComposing || event.keyCode === 229) return;
    const shortcut = this.shortcuts.get(combinationOf(event));
    if (shortcut && shortcut.act() !== false) event.preventDefault();
  }
}

function combinationOf(event) {
  const mod = isMac ? event.metaKey : event.ctrlKey;
  const parts = [mod && "mod", event.altKey && "alt", event.shiftKey && "shift", event.key.toLowerCase()];
  return parts.filter(Boolean).join("+");
}
