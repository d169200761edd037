/**
 * How much of the context the conversation on screen uses: a ring that fills, and the figures beside it. Warns while
 * there is still room to wind up. Knows {used, limit} in tokens; it does not know where they come from.
 */

import { text } from "../texts.js";
import { h } from "./dom.js";
import { contextSentence } from "./figures.js";
import { figure, percent } from "./format.js";

/** Below this part of the whole little is left; of a small one, already where no answer of some length fits. */
const LITTLE = 0.1;
const LITTLE_OF_SMALL = 0.25;
const SHORT_ANSWER = 256;

export class ContextMeter {
  #root;
  #words = h("span", { class: "words" });
  #short = h("span", { class: "short", "aria-hidden": "true" });

  constructor(root) {
    this.#root = root;
    root.append(h("i"), this.#words, this.#short);
    this.show(null);
  }

  /** @param {{used: number, limit: number} | null} context null: nothing is known */
  show(context) {
    const level = levelOf(context);
    this.#root.dataset.level = level;
    if (!context) return;
    const { used, limit } = context;
    const left = Math.max(0, limit - used);
    this.#root.style.setProperty("--used", String(Math.min(1, used / limit)));
    this.#root.title = contextSentence(context);
    this.#words.textContent = text(`context.${level}`, figure(used), figure(limit), figure(left));
    this.#short.textContent = text(`context.short.${level}`, percent(used / limit), figure(left));
  }
}

function levelOf(context) {
  if (!context) return "unknown";
  const left = context.limit - context.used;
  if (left <= 0) return "full";
  const little = Math.max(LITTLE * context.limit, Math.min(SHORT_ANSWER, LITTLE_OF_SMALL * context.limit));
  return left < little ? "little" : "enough";
}
