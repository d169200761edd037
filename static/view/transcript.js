/**
 * The conversation on screen: questions, growing answers, and the calm line under each answer.
 *
 * Knows how messages look. It does not know where they come from; buttons report through `actions`.
 */

import { isRunning } from "../model/chat.js";
import { copyFrom } from "./clipboard.js";
import { h, icon, iconButton } from "./dom.js";
import { seconds, tokenCount, tokenRate } from "./format.js";
import { MarkdownView } from "../render/markdown.js";
import { Status } from "../tickwire.js";
import { text as say } from "../texts.js";

const ENDINGS = [Status.LENGTH, Status.STOPPED, Status.INTERRUPTED, Status.FAILED];

/** How an answer ended, in words; empty for one that simply ended. */
export function endingOf(message) {
  return ENDINGS.includes(message.status) ? say(`answer.${message.status}`) : "";
}

function figuresOf({ stats }) {
  if (!stats) return [];
  const figures = [];
  if (stats.tokens !== null) figures.push(tokenCount(stats.tokens));
  if (stats.tokensPerSecond !== null) figures.push(tokenRate(stats.tokensPerSecond));
  if (stats.firstTokenMs !== null) figures.push(say("answer.firstToken", seconds(stats.firstTokenMs)));
  return figures;
}

function questionElement(message) {
  const text = h("div", { class: "question", dir: "auto" }, message.text);
  return h("article", { class: "turn user", "aria-label": say("question.you") }, text);
}

/** One answer: its text, what went wrong, its status line. */
class AnswerElement {
  element;
  #message;
  #actions;
  #markdown;
  #text = h("div", { class: "prose" });
  #wait = h("p", { class: "wait" });
  #error = h("div", { class: "failure", hidden: true });
  #status = h("div", { class: "status" });

  constructor(message, actions) {
    this.#message = message;
    this.#actions = actions;
    this.#markdown = new MarkdownView(this.#text);
    this.element = h(
      "article",
      { class: "turn assistant", "aria-label": say("answer.answer"), "data-message": message.id },
      this.#text,
      this.#wait,
      this.#error,
      this.#status,
    );
    if (isRunning(message)) this.update();
    else this.settle();
  }

  /** The answer is running: its text grew, or it went from one state of waiting to the next. */
  update() {
    const { status, text } = this.#message;
    this.element.setAttribute("aria-busy", "true");
    this.element.dataset.state = text ? "streaming" : "waiting";
    this.#wait.hidden = text !== "";
    if (!text) this.#wait.replaceChildren(...waiting(status));
    else this.#markdown.grow(text);
  }

  settle() {
    const message = this.#message;
    this.element.removeAttribute("aria-busy");
    this.element.dataset.state = message.status;
    this.#wait.hidden = true;
    this.#markdown.finish(message.text, message.status !== Status.COMPLETED);
    this.#showError(message.error);
    const figures = figuresOf(message).map((figure) => h("span", {}, figure));
    // A failure is told in full above.
    const ending = message.status === Status.FAILED ? "" : endingOf(message);
    this.#status.replaceChildren(
      this.#buttons(),
      h("p", { class: "figures" }, ending ? h("span", { class: "ending" }, ending) : null, ...figures),
    );
  }

  #buttons() {
    const copy = iconButton("copy", say("answer.copy"), { onclick: () => copyFrom(copy, this.#message.text) });
    copy.append(icon("check"));
    const retry = iconButton("retry", say("answer.again"), { class: "icon-button retry", onclick: () => this.#actions.regenerate(this.#message) });
    return h("div", { class: "buttons" }, this.#message.text ? copy : null, this.#message.error ? null : retry);
  }

  #showError(error) {
    this.#error.hidden = !error;
    if (!error) return;
    const tooLong = error.code === "context_length_exceeded";
    const act = tooLong
      ? h("button", { type: "button", class: "button", onclick: () => this.#actions.begin() }, say("page.newChat"))
      : h("button", { type: "button", class: "button", onclick: () => this.#actions.regenerate(this.#message) }, say("answer.tryAgain"));
    this.#error.replaceChildren(
      icon("alert"),
      h("div", {}, h("p", { dir: "auto" }, error.message), error.code ? h("code", {}, String(error.code)) : null),
      act,
    );
  }
}

function waiting(status) {
  const words = say(status === Status.QUEUED ? "answer.waitingForConnection" : "answer.waitingForToken");
  return [h("span", { class: "pulse" }, h("i"), h("i"), h("i")), h("span", { class: "words" }, words)];
}

export class Transcript {
  #root;
  #actions;
  #answers = new Map();

  /** @param actions {regenerate(answer), begin()}: what the buttons of an answer do */
  constructor(root, actions) {
    this.#root = root;
    this.#actions = actions;
    root.addEventListener("click", (event) => {
      const button = event.target.closest(".copy-code");
      if (button) copyFrom(button, button.closest("figure").querySelector("code").textContent);
    });
  }

  /** Shows these messages and no others; those shown already keep their elements. */
  show(path) {
    const answers = new Map();
    const shown = new Map([...this.#root.children].map((element) => [element.dataset.id, element]));
    const elements = path.map((message) => {
      const known = this.#answers.get(message.id);
      if (message.role === "user") return shown.get(message.id) ?? questionElement(message);
      const answer = known ?? new AnswerElement(message, this.#actions);
      answers.set(message.id, answer);
      return answer.element;
    });
    elements.forEach((element, i) => {
      element.dataset.id = path[i].id;
      if (this.#root.children[i] !== element) this.#root.insertBefore(element, this.#root.children[i] ?? null);
    });
    while (this.#root.children.length > elements.length) this.#root.lastElementChild.remove();
    this.#answers = answers;
  }

  /** A message grew; nothing happens if it is not on screen. */
  update(message) {
    this.#answers.get(message.id)?.update();
  }

  /** A message is final. */
  settle(message) {
    this.#answers.get(message.id)?.settle();
  }
}
