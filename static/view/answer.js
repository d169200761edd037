/**
 * One answer: its text as it grows, what went wrong, and the calm line below it.
 *
 * Knows how an answer looks. What its buttons do is told to it: `actions` has {step, again, goOn, remove, begin}.
 */

import { isAnswering, isRunning } from "../model/message.js";
import { MarkdownView } from "../render/markdown.js";
import { text as say } from "../texts.js";
import { Status } from "../tickwire.js";
import { BranchPicker } from "./branches.js";
import { copyButton } from "./clipboard.js";
import { h, icon, iconButton, setText } from "./dom.js";
import { canGoOn, contextOf, contextSentence, endedFigures, endingOf, runningFigures, waitOf } from "./figures.js";

const HEADING_LEVEL = 2;

export class AnswerElement {
  element;
  picker;
  message;
  #actions;
  #limit;
  #markdown;
  /** What the line below says now, and what is told of an error. */
  #shown = "";
  #toldError = null;
  #copy = copyButton(say("answer.copy"), () => this.message.text);
  #continue = iconButton("forward", say("answer.continue"), { onclick: () => this.#actions.goOn(this.message) });
  #again = iconButton("retry", say("answer.again"), { onclick: () => this.#actions.again(this.message) });
  #text = h("div", { class: "prose" });
  #waitWords = h("span", { class: "words" });
  #wait = h("p", { class: "wait" }, pulse(), this.#waitWords);
  #error = h("div", { class: "failure", hidden: true });
  #line = h("span");
  #figures = h("p", { class: "figures" }, this.#line);

  /** @param {() => number | null} limit what the context of an answer that has ended held */
  constructor(message, actions, limit) {
    this.message = message;
    this.#actions = actions;
    this.#limit = limit;
    this.#markdown = new MarkdownView(this.#text, HEADING_LEVEL);
    this.picker = new BranchPicker("answer", (step) => actions.step(message, step));
    const remove = iconButton("trash", say("answer.remove"), { onclick: () => actions.remove(message) });
    const buttons = h("div", { class: "buttons" }, this.#copy, this.#continue, this.#again, remove);
    this.element = h(
      "article",
      { class: "turn assistant", "aria-label": say("answer.answer"), "data-message": message.id },
      h(`h${HEADING_LEVEL}`, { class: "visually-hidden" }, say("answer.answer")),
      this.#text,
      this.#wait,
      this.#error,
      h("div", { class: "bar" }, this.picker.element, this.#figures, buttons),
    );
    if (isRunning(message)) this.update(null);
    else this.settle();
  }

  /** The answer is running: its text grew, or the server said how it stands. */
  update(stats) {
    const { message } = this;
    if (!this.element.hasAttribute("aria-busy")) this.#begin();
    this.element.dataset.state = message.text ? "streaming" : "waiting";
    this.#wait.hidden = message.text !== "";
    if (message.text) {
      this.#markdown.grow(message.text);
      this.#show(runningFigures(message, stats));
    } else {
      setText(this.#waitWords, waitOf(message, stats));
    }
  }

  settle() {
    const { message } = this;
    this.element.removeAttribute("aria-busy");
    this.element.dataset.state = message.status;
    this.#wait.hidden = true;
    void this.#markdown.finish(message.text, message.status !== Status.COMPLETED);
    this.describe();
  }

  /** Says how the answer ended, and offers what can be done now. */
  describe() {
    const { message } = this;
    const context = contextOf(message, null, this.#limit());
    const goesOn = canGoOn(message, context);
    const isBroken = Boolean(message.error);
    // A failure is told in full above.
    this.#show(endedFigures(message), message.status === Status.FAILED ? "" : endingOf(message, context));
    this.#figures.title = context ? contextSentence(context) : "";
    this.#copy.hidden = !message.text;
    // Where something went wrong, what can be done about it stands there.
    this.#continue.hidden = !goesOn || isBroken;
    this.#again.hidden = isBroken || !isAnswering(message);
    this.#tell(message.error, goesOn);
  }

  /** Copies the answer, and shows that at its button. */
  copy() {
    this.#copy.click();
  }

  #begin() {
    this.element.setAttribute("aria-busy", "true");
    this.#tell(null);
    this.#show([]);
    this.#figures.title = "";
  }

  #show(figures, ending = "") {
    // Many calls change nothing; what is selected or read aloud is left in peace then.
    const shown = [ending, ...figures].join("\n");
    if (shown === this.#shown) return;
    this.#shown = shown;
    const spans = figures.map((words) => h("span", {}, words));
    if (ending) spans.unshift(h("span", { class: "ending" }, ending));
    this.#line.replaceChildren(...spans);
  }

  #tell(error, goesOn = false) {
    this.#error.hidden = !error;
    if (error === this.#toldError) return;
    this.#toldError = error;
    if (!error) return;
    const act = (key, name) =>
      h("button", { type: "button", class: "button", onclick: () => this.#actions[name](this.message) }, say(key));
    const acts =
      error.code === "context_length_exceeded"
        ? [act("page.newChat", "begin")]
        : [goesOn && act("answer.continue", "goOn"), isAnswering(this.message) && act("answer.tryAgain", "again")];
    const code = error.code ? h("code", {}, String(error.code)) : null;
    const what = h("div", {}, h("p", { dir: "auto" }, error.message), code);
    this.#error.replaceChildren(icon("alert"), what, ...acts.filter(Boolean));
  }
}

function pulse() {
  return h("span", { class: "pulse" }, h("i"), h("i"), h("i"));
}
