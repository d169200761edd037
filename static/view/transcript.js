/**
 * The conversation on screen: its messages in order, and what can be done with them.
 *
 * Knows the Chat, which element shows which message, and where the reader's eyes and his focus are. It does not know
 * how a question or an answer looks.
 */

import { excerpt } from "../model/excerpt.js";
import { isAnswering, isRunning } from "../model/message.js";
import { text as say } from "../texts.js";
import { announce } from "./announce.js";
import { AnswerElement } from "./answer.js";
import { copyFrom } from "./clipboard.js";
import { canGoOn, contextOf } from "./figures.js";
import { QuestionElement } from "./question.js";

const EXCERPT_LENGTH = 120;

export class Transcript {
  #root;
  #chat;
  #page;
  #actions;
  #path = [];
  /** Message id -> the element of a message that is shown. */
  #views = new Map();

  /**
   * @param page {live, follower, removal, meter, limit(), focus(), begin()}: `limit` gives what the context holds, or
   *   null, `focus` goes back to the box one writes in, `begin` begins another conversation
   */
  constructor(root, chat, page) {
    this.#root = root;
    this.#chat = chat;
    this.#page = page;
    this.#actions = {
      ask: (question, words) => this.#do(() => chat.edit(question, words)),
      again: (answer) => this.#again(answer),
      goOn: (answer) => this.#goOn(answer),
      step: (message, step) => this.#step(message, step),
      remove: (message) => this.#remove(message),
      hold: (element, act) => page.follower.hold(element, act),
      begin: () => page.begin(),
    };
    page.live.addEventListener("stats", ({ detail }) => {
      this.update(detail.message);
      this.#showContext();
    });
    root.addEventListener("click", (event) => {
      const button = event.target.closest(".copy-code");
      if (button) copyFrom(button, button.closest("figure").querySelector("code").textContent);
    });
  }

  /** Shows these messages and no others; those shown already keep their elements. */
  show(path) {
    this.#path = path;
    this.#views = new Map(path.map((message) => [message.id, this.#views.get(message.id) ?? this.#view(message)]));
    this.#chat.siblingsAlong(path).forEach((siblings, i) => {
      this.#views.get(path[i].id).picker.show(siblings.indexOf(path[i]), siblings.length);
    });
    const elements = [...this.#views.values()].map(({ element }) => element);
    elements.forEach((element, i) => {
      if (this.#root.children[i] !== element) this.#root.insertBefore(element, this.#root.children[i] ?? null);
    });
    while (this.#root.children.length > elements.length) this.#root.lastElementChild.remove();
    this.#showContext();
  }

  /** An answer grew, or the server said how it stands; nothing happens if it is not on screen. */
  update(message) {
    this.#views.get(message.id)?.update(this.#page.live.of(message));
  }

  /** An answer is final. */
  settle(message) {
    this.#views.get(message.id)?.settle();
    this.#showContext();
  }

  /** What the context holds has become known, or is another. */
  refresh() {
    const ended = this.#path.filter((message) => message.role === "assistant" && !isRunning(message));
    for (const { id } of ended) this.#views.get(id).describe();
    this.#showContext();
  }

  // -- what keys do as well; false: there is nothing to be done ------------------------------------------------

  editLast() {
    const question = this.#path.findLast(({ role }) => role === "user");
    if (!question) return false;
    this.#views.get(question.id).edit();
    return true;
  }

  copyLast() {
    const answer = this.#path.findLast(({ role, text }) => role === "assistant" && text);
    if (!answer || isRunning(answer)) return false;
    this.#views.get(answer.id).copy();
    return true;
  }

  regenerateLast() {
    const answer = this.#path.at(-1);
    if (answer?.role !== "assistant" || isRunning(answer) || !isAnswering(answer)) return false;
    this.#again(answer);
    return true;
  }

  continueLast() {
    const answer = this.#path.at(-1);
    if (answer?.role !== "assistant" || !canGoOn(answer, contextOf(answer, null, this.#page.limit()))) return false;
    this.#goOn(answer);
    return true;
  }

  previousBranch() {
    return this.#turn(-1);
  }

  nextBranch() {
    return this.#turn(1);
  }

  // -- acts ------------------------------------------------------------------------------------------------

  #view(message) {
    if (message.role === "user") return new QuestionElement(message, this.#actions);
    return new AnswerElement(message, this.#actions, this.#page.limit);
  }

  /** How full the context is with the last answer of which that is known. */
  #showContext() {
    const { live, meter, limit } = this.#page;
    const contexts = this.#path.map((message) => contextOf(message, live.of(message), limit()));
    meter.show(contexts.findLast((context) => context !== null) ?? null);
  }

  /** Does what makes an answer grow. The reader has asked for it: he is to see it, and may write on. */
  #do(act) {
    act();
    this.#page.follower.jump();
    this.#page.focus();
  }

  #again(answer) {
    this.#do(() => this.#chat.regenerate(answer));
    // One without a word is nothing to go back to.
    if (!answer.text) void this.#chat.removeBranch(answer);
  }

  #goOn(answer) {
    // Those who go on with an earlier one read there, not at the end.
    if (answer === this.#path.at(-1)) this.#do(() => this.#chat.continue(answer));
    else {
      this.#chat.continue(answer);
      this.#page.focus();
    }
  }

  async #remove(message) {
    const isQuestion = message.role === "user";
    const title = say(isQuestion ? "question.removal" : "answer.removal");
    const what = excerpt(message.text, EXCERPT_LENGTH);
    const words = say(message === this.#path.at(-1) ? "removal.what" : "removal.following");
    if (!(await this.#page.removal.ask({ title, what, words }))) return;
    await this.#chat.removeBranch(message);
    this.#page.focus();
    announce(say("removal.done"));
  }

  /** Shows a message's sibling instead of it, in the same place before the reader's eyes. */
  #step(message, step) {
    const siblings = this.#chat.siblings(message);
    const next = siblings[siblings.indexOf(message) + step];
    if (!next) return false;
    const view = this.#views.get(message.id);
    const hadFocus = view.element.contains(document.activeElement);
    this.#page.follower.hold(view.picker.element, () => {
      this.#chat.choose(next);
      return this.#views.get(next.id).picker.element;
    });
    const { picker } = this.#views.get(next.id);
    if (hadFocus) picker.focus(step);
    announce(picker.place);
    return true;
  }

  /** Steps at the message that has the focus, else at the last one that has siblings. */
  #turn(step) {
    const siblings = this.#chat.siblingsAlong(this.#path);
    const branches = this.#path.filter((_, i) => siblings[i].length > 1);
    const focused = branches.find(({ id }) => this.#views.get(id).element.contains(document.activeElement));
    const message = focused ?? branches.at(-1);
    return message !== undefined && this.#step(message, step);
  }
}
