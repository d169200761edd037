/** What the reader must hear of, in a strip above the composer, until he puts it away. Of several he sees the last. */

export class Notice {
  #root;
  #words;

  constructor(root) {
    this.#root = root;
    this.#words = root.querySelector("p");
    root.querySelector("button").addEventListener("click", () => {
      root.hidden = true;
    });
  }

  show(words) {
    this.#words.textContent = words;
    this.#root.hidden = false;
  }
}
