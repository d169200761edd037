/**
 * The way to a part of the page that most visits do not need: its modules and styles are loaded when it is opened for
 * the first time. One that did not come is asked for again the next time.
 */

import { loadStyles } from "./dom.js";

export class Door {
  #load;
  #ontrouble;
  #loading = null;
  #last = null;

  /**
   * @param {() => Promise<object>} load imports the module
   * @param styles the address of its style sheet
   * @param make makes the part from what the module exports
   * @param ontrouble called when it could not be loaded for somebody who waits for it
   */
  constructor({ load, styles, make, ontrouble }) {
    this.#load = async () => {
      const [module] = await Promise.all([load(), loadStyles(styles)]);
      return make(module);
    };
    this.#ontrouble = ontrouble;
  }

  /** Does this with the part, once it is there. Of several acts that wait for it, only the last is done. */
  async open(act) {
    this.#last = act;
    let part;
    try {
      part = await this.#loaded();
    } catch (error) {
      if (this.#last !== act) return;
      console.warn("A part of the page could not be loaded:", error);
      this.#ontrouble();
      return;
    }
    if (this.#last === act) act(part);
  }

  /** Loads as soon as somebody is about to press this button. What fails then is told to whoever presses it. */
  expect(button) {
    const prepare = () => this.#loaded().catch(() => {});
    for (const type of ["pointerenter", "focus"]) button.addEventListener(type, prepare);
  }

  #loaded() {
    this.#loading ??= this.#load().catch((error) => {
      this.#loading = null;
      throw error;
    });
    return this.#loading;
  }
}
