/**
 * What somebody has chosen for this browser, kept in localStorage, where all tabs see it.
 *
 *     setup   how the next new conversation is to be answered; see setup.js
 *
 * Fires `change` when one of them changed, here or in another tab.
 */

import { FIRST_SETUP } from "./setup.js";

const KEY = "tickwire.preferences";
const FIRST = Object.freeze({ setup: FIRST_SETUP });

export class Preferences extends EventTarget {
  #values = { ...FIRST, ...read() };

  constructor() {
    super();
    addEventListener("storage", ({ key }) => {
      if (key !== KEY) return;
      this.#values = { ...FIRST, ...read() };
      this.dispatchEvent(new Event("change"));
    });
  }

  get setup() {
    return this.#values.setup;
  }

  set setup(setup) {
    this.#set({ setup });
  }

  #set(values) {
    Object.assign(this.#values, values);
    try {
      localStorage.setItem(KEY, JSON.stringify(this.#values));
    } catch {
      // Storage is blocked: the choice holds until the page goes.
    }
    this.dispatchEvent(new Event("change"));
  }
}

function read() {
  try {
    return JSON.parse(localStorage.getItem(KEY) ?? "{}");
  } catch {
    return {}; // Storage is blocked, or holds what a hand has written there.
  }
}
