/**
 * What the page says, in the reader's language: `text("answer.stopped")`.
 *
 * Knows which languages there are, and how a text gets into an element. It does not know who says what. A language
 * is one file like `texts/en.js`, listed here.
 */

import en from "./texts/en.js";

const LANGUAGES = { en };

const code = navigator.languages.map((tag) => tag.split("-")[0]).find((tag) => Object.hasOwn(LANGUAGES, tag)) ?? "en";

/** {code, dir}: of what the page says; what people and models write has its own. */
export const language = { code, dir: LANGUAGES[code].dir };

/**
 * @param {string} key the way to a text, with dots: "answer.stopped"
 * @param {...unknown} values of a text that is a function: what it is to say
 * @throws {RangeError} there is no such text
 */
export function text(key, ...values) {
  const found = find(key);
  return typeof found === "function" ? found(...values) : found;
}

/** What stands under a key that holds a list. @throws {RangeError} as `text` */
export function texts(key) {
  return find(key);
}

function find(key) {
  const found = key.split(".").reduce((branch, name) => branch?.[name], LANGUAGES[code]);
  if (found === undefined) throw new RangeError(`text: got ${key}, which texts/${code}.js does not have`);
  return found;
}

/**
 * Says what the elements under `root` are marked with: `data-text` is what stands in it, `data-label` its name and
 * tooltip, `data-name` its name alone, `data-placeholder` what an empty field shows.
 */
export function say(root) {
  for (const element of root.querySelectorAll("[data-text]")) element.textContent = text(element.dataset.text);
  for (const element of root.querySelectorAll("[data-label]")) {
    element.title = text(element.dataset.label);
    element.setAttribute("aria-label", element.title);
  }
  for (const element of root.querySelectorAll("[data-name]")) {
    element.setAttribute("aria-label", text(element.dataset.name));
  }
  for (const element of root.querySelectorAll("[data-placeholder]")) {
    element.placeholder = text(element.dataset.placeholder);
  }
}
