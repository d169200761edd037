/**
 * The way to the engine view: its modules, which most visits do not need, are loaded when it is opened first.
 */

export class EngineDoor {
  isOpen = false;
  #root;
  #options;
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
      const { EngineView } = await import("./view.js");
      this.#view ??= new EngineView(this.#root, this.#options);
    } catch (error) {
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
