/**
 * Puts formulas in the place of their sources. Whoever has some waits a moment for the first one: what makes them is
 * loaded when it is needed.
 */

import { loadStyles } from "../view/dom.js";
import { once } from "./once.js";
import { soon } from "./slices.js";

const NUM_KEPT = 300;

/** `formula` of mathml.js, once it is there. */
let make = null;
/** Formulas shown before, which a growing paragraph shows again with every frame: source -> element. */
const kept = new Map();

/** Puts formulas in the place of their sources under `root`, as steps. */
export function* typeset(root) {
  for (const source of root.querySelectorAll("code.math")) {
    if (make) {
      put(source);
      yield;
    } else {
      void load().then((found) => found && soon(putLater(source)));
    }
  }
}

function* putLater(source) {
  if (source.isConnected) put(source);
}

/** Without it, formulas stay as they were written. */
const load = once(async () => {
  const [module] = await Promise.all([import("./mathml.js"), loadStyles("/static/vendor/temml/Temml-Local.css")]);
  make = module.formula;
});

function put(source) {
  const display = source.classList.contains("display");
  const key = `${display}${source.textContent}`;
  if (!kept.has(key)) {
    if (kept.size >= NUM_KEPT) kept.delete(kept.keys().next().value);
    kept.set(key, make(source.textContent, display));
  }
  const element = kept.get(key);
  if (element) source.replaceWith(element.cloneNode(true));
}
