/**
 * What somebody has chosen for this browser, kept in localStorage, where all tabs see it.
 *
 *     setup     how the next new conversation is to be answered; see setup.js
 *     presets   setups under names of one's own: [{id, name, setup}]
 *     warmUp    whether the server may compute what is being typed
 *     apiKey    "" where none was given
 *
 * Fires `change` when one of them changed, here or in another tab.
 */

import { FIRST_SETUP } from "./setup.js";

const KEY = "tickwire.preferences";
const FIRST = Object.freeze({ setup: FIRST_SETUP, presets: [], warmUp: true, apiKey: "" });

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

  get presets() {
    return this.#values.presets;
  }

  set presets(presets) {
    this.#set({ presets });
  }

  get warmUp() {
    return this.#values.warmUp;
  }

  set warmUp(warmUp) {
    this.#set({ warmUp });
  }

  get apiKey() {
    return this.#values.apiKey;
  }

  set apiKey(apiKey) {
    this.#set({ apiKey });
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
