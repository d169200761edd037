/**
 * One question: its words, what can be done with it, and the field in its place in which it is asked anew.
 *
 * Knows how a question looks. What its buttons do is told to it: `actions` has {ask, step, remove, hold}.
 */

import { text as say } from "../texts.js";
import { BranchPicker } from "./branches.js";
import { copyButton } from "./clipboard.js";
import { h, iconButton } from "./dom.js";
import { isOfInputMethod } from "./keys.js";
import { timeElement } from "./moment.js";
import { fit, isSend } from "./textbox.js";

export class QuestionElement {
  element;
  picker;
  #message;
  #actions;
  #words;
  #bar;
  #copy;
  #edit = iconButton("pencil", say("question.edit"), { onclick: () => this.edit() });

  constructor(message, actions) {
    this.#message = message;
    this.#actions = actions;
    this.picker = new BranchPicker("question", (step) => actions.step(message, step));
    this.#words = h("div", { class: "question", dir: "auto" }, message.text);
    this.#copy = copyButton(say("question.copy"), () => message.text);
    const remove = iconButton("trash", say("question.remove"), { onclick: () => actions.remove(message) });
    const buttons = h("div", { class: "buttons" }, timeElement(message.created), this.#copy, this.#edit, remove);
    this.#bar = h("div", { class: "bar" }, buttons, this.picker.element);
    const attributes = { class: "turn user", "aria-label": say("question.you"), "data-message": message.id };
    this.element = h("article", attributes, this.#words, this.#bar);
  }

  /** Puts a field in the question's place, to ask something else. */
  edit() {
    if (!this.#words.isConnected) return;
    const before = document.activeElement;
    const close = () => {
      this.#hold(() => this.element.replaceChildren(this.#words, this.#bar));
      // Who came by a key from elsewhere goes back there.
      (before === document.body ? this.#edit : before).focus({ preventScroll: true });
    };
    const send = (words) => {
      close();
      this.#actions.ask(this.#message, words);
    };
    const [form, field] = editor(this.#message.text, { send, close });
    this.#hold(() => this.element.replaceChildren(form));
    fit(field);
    field.focus();
    field.setSelectionRange(field.value.length, field.value.length);
  }

  #hold(act) {
    this.#actions.hold(this.element, () => {
      act();
      return this.element;
    });
  }
}

/** @returns {[HTMLFormElement, HTMLTextAreaElement]} */
function editor(words, { send, close }) {
  const field = h("textarea", { rows: "1", dir: "auto", "aria-label": say("question.field"), enterkeyhint: "enter" });
  field.value = words;
  const cancel = h("button", { type: "button", class: "button", onclick: close }, say("question.cancel"));
  const submit = h("button", { class: "button primary" }, say("question.send"));
  const form = h("form", { class: "editor" }, field, h("div", { class: "choices" }, cancel, submit));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (field.value.trim()) send(field.value.trim());
  });
  field.addEventListener("input", () => {
    submit.disabled = field.value.trim() === "";
    fit(field);
  });
  form.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !isOfInputMethod(event)) {
      event.preventDefault();
      close();
    } else if (event.target === field && isSend(event)) {
      event.preventDefault();
      form.requestSubmit();
    }
  });
  return [form, field];
}
