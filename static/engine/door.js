/** The way to the engine view, which lies in the page's own place: it may be left before it has come. */

import { Door } from "../view/door.js";
import { loadStyles } from "../view/dom.js";

export class EngineDoor {
  isOpen = false;
  #door;
  #view = null;

  /** As EngineView's; and `ontrouble` is called when the view could not be loaded. */
  constructor(root, { ontrouble, ...options }) {
    const load = async () => {
      const [{ EngineView }] = await Promise.all([import("./view.js"), loadStyles("/static/styles/engine.css")]);
      this.#view = new EngineView(root, options);
      return this.#view;
    };
    this.#door = new Door(load, () => {
      if (!this.isOpen) return;
      options.onback();
      ontrouble();
    });
  }

  open() {
    document.body.dataset.view = "engine";
    this.isOpen = true;
    void this.#door.open((view) => this.isOpen && view.open());
  }

  close() {
    this.isOpen = false;
    this.#view?.close();
  }
}
