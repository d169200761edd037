/**
 * The way to the engine view: its modules and styles, which most visits do not need, are loaded when it is opened
 * for the first time.
 */

import { loadStyles } from "../view/dom.js";

export class EngineDoor {
  isOpen = false;
  #root;
  #options;
  #loaded = null;
  #view = null;

  /** As EngineView's. */
  constructor(root, options) {
    this.#root = root;
    this.#options = options;
  }

  async open() {
    document.body.dataset.view = "engine";
    this.isOpen = true;
    try {
      this.#loaded ??= Promise.all([import("./view.js"), loadStyles("/static/styles/engine.css")]);
      const [{ EngineView }] = await this.#loaded;
      this.#view ??= new EngineView(this.#root, this.#options);
    } catch (error) {
      this.#loaded = null;
      console.warn("The engine view could not be loaded:", error);
      if (this.isOpen) this.#options.onback();
      return;
    }
    if (this.isOpen) this.#view.open();
  }

  close() {
    this.isOpen = false;
    this.#view?.close();
  }
}
