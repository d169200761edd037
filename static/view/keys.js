/**
 * The keyboard: which keys do what, anywhere on the page. Knows combinations of keys; what they do is told to it.
 *
 * A combination is written "mod+shift+o"; `mod` is Ctrl, or the command key of a Mac. Keys of an input method belong
 * to it, keys that write belong to the field they write in, and while a dialog or a menu is open it has them all.
 */

import { text } from "../texts.js";

const isMac = /mac|iphone|ipad/i.test(navigator.userAgentData?.platform ?? navigator.platform);
const MODIFIERS = ["mod", "alt", "shift"];
const SYMBOLS = { mod: "⌘", alt: "⌥", shift: "⇧", enter: "↩", backspace: "⌫", escape: "esc" };
const ARROWS = { arrowup: "↑", arrowdown: "↓", arrowleft: "←", arrowright: "→" };

export class Keys {
  /** Combination -> {group, text, where, act}, in the order in which they are explained. */
  shortcuts = new Map();

  constructor(target = window) {
    target.addEventListener("keydown", (event) => this.#pressed(event));
  }

  /**
   * @param {string} combination
   * @param {string} name key of the text that says what it does
   * @param {() => boolean | void} act false: nothing was to be done, and the browser may have the key
   * @param {object} [how]
   * @param {string} [how.group] key of the text under which it is explained
   * @param {string} [how.where] selector of what must have the focus; left out, anything that has no use for the keys
   */
  on(combination, name, act, { group = "keys.page", where = null } = {}) {
    this.shortcuts.set(combination, { group, name, where, act });
  }

  #pressed(event) {
    // Browsers that fill fields in report keys without a name.
    if (event.defaultPrevented || !event.key || isOfInputMethod(event)) return;
    if (document.querySelector("dialog:modal, :popover-open")) return;
    const combination = combinationOf(event);
    const shortcut = this.shortcuts.get(combination);
    if (!shortcut) return;
    const free = shortcut.where ? event.target.matches(shortcut.where) : !belongsTo(event.target, combination);
    if (free && shortcut.act() !== false) event.preventDefault();
  }
}

/** Whether an input method has the key, as the Enter that chooses a word. Safari reports that as code 229 only. */
export function isOfInputMethod(event) {
  return event.isComposing || event.keyCode === 229;
}

/** The names of a combination's keys, as they stand on this keyboard. */
export function keysOf(combination) {
  return combination.split("+").map((key) => {
    if (key in ARROWS) return ARROWS[key];
    if (isMac && key in SYMBOLS) return SYMBOLS[key];
    return MODIFIERS.includes(key) || key.length > 2 ? text(`keys.names.${key}`) : key.toUpperCase();
  });
}

function combinationOf(event) {
  const [mod, other] = isMac ? [event.metaKey, event.ctrlKey] : [event.ctrlKey, event.metaKey];
  const key = keyOf(event);
  // Signs are where a layout puts them, some behind Shift: it is part of the sign, not of the combination.
  const shift = event.shiftKey && (key.length > 1 || /[a-z]/.test(key));
  return [other && "other", mod && "mod", event.altKey && "alt", shift && "shift", key].filter(Boolean).join("+");
}

/** A letter is known by its place where the layout has others, or where Alt makes another sign of it. */
function keyOf({ key, code }) {
  const letter = code.match(/^Key([A-Z])$/)?.[1];
  return (letter && /^[^\x20-\x7e]$/.test(key) ? letter : key).toLowerCase();
}

/** Whether an element has a use of its own for these keys. */
function belongsTo(element, combination) {
  const [key, ...modifiers] = combination.split("+").reverse();
  // In a field with text, arrows move about in it, with whatever else is held.
  if (key.startsWith("arrow")) return element.matches("input, select, textarea:not(:placeholder-shown)");
  return key.length === 1 && !modifiers.includes("mod") && element.matches("input, select, textarea");
}
