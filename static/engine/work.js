/**
 * Something for the engine to do: a few short answers at once, through the page's own socket, so that one sees rows
 * come and go. They are shown as they grow, and kept nowhere.
 *
 * Knows the socket client. It does not know the engine: by which sign a row is drawn is told to it.
 */

import { FIRST_SETUP } from "../model/setup.js";
import { h, icon } from "../view/dom.js";
import { figure } from "../view/format.js";
import { text, texts } from "../texts.js";
import { Connection } from "../tickwire.js";

/** At most so many tokens of each: they leave one after the other. */
const LENGTHS = [28, 44, 60, 80, 100, 128];
/** At least so many, else one could be gone before it was seen. */
const SHORTEST = LENGTHS[0];
const TAIL = 160;

export class Work {
  button = h("button", { type: "button", class: "button work" });
  list = h("ul", { class: "answers", role: "list", hidden: true });
  #wire;
  #lines = [];
  #frame = null;

  constructor(wire) {
    this.#wire = wire;
    this.button.addEventListener("click", () => (this.isRunning ? this.stop() : this.start()));
    wire.addEventListener("connection", () => this.#showButton());
    this.#showButton();
  }

  get isRunning() {
    return this.#lines.some(({ answer }) => !answer.isFinal);
  }

  /** The ids of its answers, as the server tells them. */
  get responseIds() {
    return this.#lines.map(({ answer }) => answer.responseId).filter(Boolean);
  }

  start() {
    const questions = texts("engine.work.questions");
    // All begin with the same words, so their first blocks are one and the same.
    const instructions = text("engine.work.instructions");
    const always = { store: false, on_disconnect: "cancel", min_tokens: SHORTEST };
    const shared = { instructions, ...always, ...FIRST_SETUP.sampling };
    this.#lines = LENGTHS.map((length, i) => {
      const input = questions[i % questions.length];
      return new Line(input, this.#wire.respond({ input, max_output_tokens: length, ...shared }));
    });
    for (const { answer } of this.#lines) {
      void this.#follow(answer);
      void answer.ended.then(() => this.#showButton());
    }
    this.list.replaceChildren(...this.#lines.map(({ element }) => element));
    this.list.hidden = false;
    this.#showButton();
  }

  stop() {
    for (const { answer } of this.#lines) answer.stop();
  }

  /** @param signOf tells for a response's id by what its row is known; null where it has none now */
  mark(signOf) {
    for (const line of this.#lines) line.mark(line.answer.responseId && signOf(line.answer.responseId));
  }

  async #follow(answer) {
    for await (const _ of answer) this.#redraw();
    this.#redraw();
  }

  #redraw() {
    this.#frame ??= requestAnimationFrame(() => {
      this.#frame = null;
      for (const line of this.#lines) line.show();
    });
  }

  #showButton() {
    const { isRunning } = this;
    const words = text(isRunning ? "engine.work.stop" : "engine.work.start");
    if (this.button.textContent !== words) this.button.replaceChildren(icon(isRunning ? "stop" : "plus"), words);
    this.button.disabled = !isRunning && this.#wire.connection.state !== Connection.OPEN;
  }
}

/** One answer: the sign of its row, its question, and the end of its text. */
class Line {
  answer;
  #sign = h("span", { class: "sign" }, "·");
  #tail = h("bdi", {});
  #state = h("span", { class: "state" });
  #shown = 0;

  constructor(question, answer) {
    this.answer = answer;
    this.element = h("li", {}, this.#sign, h("span", { class: "tail" }, this.#tail), this.#state);
    this.#tail.textContent = question;
    this.element.dataset.state = "waiting";
    this.show();
  }

  show() {
    const { answer } = this;
    if (answer.text.length !== this.#shown) {
      this.#shown = answer.text.length;
      this.#tail.textContent = answer.text.slice(-TAIL).replace(/\s+/g, " ");
    }
    if (!answer.text && !answer.isFinal) return;
    this.element.dataset.state = answer.isFinal ? "ended" : "running";
    this.#state.textContent = answer.isFinal ? this.#ending() : "";
  }

  mark(sign) {
    if (!sign || this.#sign.textContent === sign.letters) return;
    this.#sign.textContent = sign.letters;
    this.#sign.style.setProperty("--hue", String(sign.hue));
    this.#sign.classList.add("owner");
  }

  #ending() {
    const { error, usage } = this.answer;
    if (error) return error.message;
    return usage ? text("answer.tokens", usage.output_tokens, figure(usage.output_tokens)) : text("answer.stopped");
  }
}
