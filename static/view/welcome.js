/** The empty page: what this is, and things to begin with. It calls `onask(question)`. */

import { h } from "./dom.js";
import { text, texts } from "../texts.js";

export function showWelcome(root, onask) {
  root.querySelector("p").append(text("welcome.what"), h("br"), text("welcome.how"));
  const suggestions = texts("welcome.suggestions").map(({ verb, rest, prompt }) =>
    h("button", { type: "button", class: "suggestion", onclick: () => onask(prompt) }, h("b", {}, verb), ` ${rest}`),
  );
  root.append(h("div", { class: "suggestions" }, ...suggestions));
}
