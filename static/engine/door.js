/** The way to the engine view, which lies in the page's own place: it may be left before it has come. */

import { Door } from "../view/door.js";

export class EngineDoor {
  isOpen = false;
  #door;
  #view = null;

  /** As EngineView's; and `ontrouble` is called when the view could not be loaded. */
  constructor(root, { ontrouble, ...options }) {
    this.#door = new Door({
      load: () => import("./view.js"),
      styles: "/static/styles/engine.css",
      make: ({ EngineView }) => (this.#view = new EngineView(root, options)),
      ontrouble: () => {
        if (!this.isOpen) return;
        options.onback();
        ontrouble();
      },
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
