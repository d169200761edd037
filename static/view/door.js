/**
 * The way to a part of the page that most visits do not need: its modules and styles are loaded when it is opened for
 * the first time. One that did not come is asked for again the next time.
 */

export class Door {
  #load;
  #ontrouble;
  #loading = null;
  #last = null;

  /**
   * @param {() => Promise<object>} load makes the part
   * @param ontrouble called when it could not be loaded for somebody who waits for it
   */
  constructor(load, ontrouble) {
    this.#load = load;
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
