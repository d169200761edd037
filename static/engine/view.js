/**
 * The engine view: what the engine does, while it does it.
 *
 * Puts the panel together, and asks the server only while it is shown. Knows nothing of conversations: which responses
 * are the reader's own is told to it.
 */

import { BlockMap } from "./blocks.js";
import { Feed } from "./feed.js";
import { Figures, Tables } from "./figures.js";
import { History } from "./history.js";
import { Owners } from "./owners.js";
import { Savings } from "./saving.js";
import { TickChart } from "./ticks.js";
import { Work } from "./work.js";
import { h, icon } from "../view/dom.js";
import { text } from "../texts.js";

/** How much of an id the server shows. */
const SHOWN_OF_ID = 8;
const LONGEST_SLIDE_MS = 600;

export class EngineView {
  #root;
  #responseIds;
  #feed;
  #work;
  #history = new History();
  #owners = new Owners();
  #figures = new Figures();
  #tables = new Tables();
  #savings = new Savings();
  #ticks;
  #blocks;
  #heading = h("h2", { tabindex: "-1" }, text("engine.heading"));
  #state = h("p", { class: "state", "data-state": "asking" });
  #away = h("p", { class: "away", role: "status", hidden: true });
  #invitation = h("p", { class: "invitation", hidden: true }, h("span", {}, text("engine.idle")));
  #mine = new Set();
  #isMine = (id) => this.#mine.has(baseOf(id));
  #wasAway = false;
  #shownAt = 0;

  /**
   * @param root the element that is shown while `body[data-view]` is "engine"
   * @param {{wire: Tickwire, headers: () => object, responseIds: () => string[], onback: () => void}} options
   *   `responseIds`: the reader's own running answers
   */
  constructor(root, { wire, headers, responseIds, onback }) {
    this.#root = root;
    this.#responseIds = responseIds;
    this.#work = new Work(wire);
    const isMine = this.#isMine;
    this.#ticks = new TickChart(this.#history, this.#owners, { isMine, onpick: (id) => this.#blocks.highlight(id) });
    this.#blocks = new BlockMap(this.#owners, { isMine, onpick: (id) => this.#ticks.highlight(id) });
    this.#feed = new Feed(headers);
    this.#feed.addEventListener("picture", ({ detail }) => this.#show(detail));
    this.#feed.addEventListener("away", ({ detail }) => this.#showAway(detail));
    this.#build(onback);
  }

  /** Asks for pictures from now on. */
  open() {
    this.#feed.start();
    this.#heading.focus({ preventScroll: true });
  }

  /** Asks for nothing any more. */
  close() {
    this.#feed.stop();
    this.#work.stop();
  }

  #build(onback) {
    const back = h("button", { type: "button", class: "button", onclick: onback }, text("engine.back"));
    const what = h("p", { class: "what" }, text("engine.what"));
    const acts = h("div", { class: "acts" }, this.#work.button, back);
    const chart = h("div", { class: "with-invitation" }, this.#ticks.element, this.#invitation);
    this.#root.append(
      h(
        "div",
        { class: "panel" },
        h("div", { class: "head" }, h("div", {}, this.#heading, what, this.#state), acts),
        this.#away,
        this.#figures.element,
        card("ticks", legend(), chart, this.#work.list),
        card("blocks", this.#blocks.element),
        card("savings", this.#savings.element),
        this.#tables.element,
      ),
    );
  }

  #show(picture) {
    // A server that comes back may have been started anew, and count its ticks from the beginning.
    if (this.#wasAway) this.#history.forget();
    this.#wasAway = false;
    this.#away.hidden = true;
    this.#history.add(picture);
    this.#mine = new Set([...this.#responseIds(), ...this.#work.responseIds].map(shownId));
    const stays = this.#history.stays.map(({ id }) => id);
    this.#owners.keep(new Set([...stays, ...picture.running.map(({ id }) => id)]));
    const now = performance.now();
    this.#figures.update(picture);
    this.#ticks.update(Math.max(1, Math.min(now - this.#shownAt, LONGEST_SLIDE_MS)));
    this.#blocks.update(picture);
    this.#savings.update(picture);
    const signOf = (id) => this.#owners.signOf(id);
    this.#work.mark((responseId) => signOf(shownId(responseId)));
    this.#tables.update(picture, this.#history, { signOf, isMine: this.#isMine });
    this.#invitation.hidden = this.#history.last > 0;
    this.#showState(picture.stats);
    this.#shownAt = now;
  }

  #showState({ running, failure }) {
    const state = failure ? "failed" : running ? "working" : "idle";
    if (this.#state.dataset.state === state) return;
    this.#state.dataset.state = state;
    this.#state.replaceChildren(h("i"), failure ?? text(`engine.states.${state}`));
  }

  /** The last picture stays. */
  #showAway(reason) {
    this.#wasAway = true;
    this.#state.dataset.state = "away";
    this.#state.replaceChildren(h("i"), text("engine.states.away"));
    this.#away.replaceChildren(icon("alert"), text("engine.away", reason, this.#shownAt > 0));
    this.#away.hidden = false;
  }
}

/** What the server shows of a response's id. */
function shownId(responseId) {
  return responseId.replace(/^resp_/, "").slice(0, SHOWN_OF_ID);
}

/** A sequence's id without the number of the answer, where a request has several. */
function baseOf(id) {
  return id.split("#", 1)[0];
}

/** A part of the panel, under its title and a word on what it shows. */
function card(name, ...content) {
  const title = h("h3", { id: `engine-${name}` }, text(`engine.${name}.title`));
  const what = h("p", { class: "what" }, text(`engine.${name}.what`));
  return h("section", { class: `card ${name}`, "aria-labelledby": title.id }, title, what, ...content);
}

function legend() {
  const items = ["decode", "prefill"].map((kind) => h("li", {}, h("i", { class: kind }), text(`engine.ticks.${kind}`)));
  return h("ul", { class: "legend", role: "list" }, ...items);
}
