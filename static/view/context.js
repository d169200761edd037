/**
 * How much of the context the conversation on screen uses: a ring that fills, and the figures beside it. Warns while
 * there is still room to wind up. Knows {used, limit} in tokens; it does not know where they come from.
 */

import { text } from "../texts.js";
import { h } from "./dom.js";
import { figure, percent } from "./format.js";

/** Below this part of the whole, or this many tokens, little is left. */
const LITTLE_PART = 0.1;
const LITTLE_TOKENS = 256;

export class ContextMeter {
  #root;
  #words = h("span", { class: "words" });

  constructor(root) {
    this.#root = root;
    root.append(h("i"), this.#words);
    this.show(null);
  }

  /** @param {{used: number, limit: number} | null} context null: nothing is known */
  show(context) {
    this.#root.dataset.level = levelOf(context);
    if (!context) return;
    const { used, limit } = context;
    const shown = [used, limit, Math.max(0, limit - used)].map(figure);
    this.#root.style.setProperty("--used", String(Math.min(1, used / limit)));
    this.#words.textContent = text(`context.${levelOf(context)}`, ...shown);
    this.#root.title = text("context.title", ...shown, percent(used / limit));
  }
}

function levelOf(context) {
  if (!context) return "unknown";
  const left = context.limit - context.used;
  if (left <= 0) return "full";
  return left < LITTLE_TOKENS || left < LITTLE_PART * context.limit ? "little" : "enough";
}
