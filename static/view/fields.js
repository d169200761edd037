/**
 * Fields for what a request may say of sampling: one of them is empty where nothing is said, and shows the server's
 * default then. Knows how a value is written and what is allowed; it does not know what becomes of it: it calls
 * `onchange(value)`, with undefined for nothing. What is not allowed is told at the field, and never passed on.
 */

import { isIn, numberFrom, rangeOf } from "../model/ranges.js";
import { text } from "../texts.js";
import { h, icon, iconButton } from "./dom.js";
import { figure } from "./format.js";

/** A select element with an arrow of the page's own. */
export function selectBox(select) {
  return h("div", { class: "select" }, select, icon("chevron"));
}

/** What all of them have: a name, a word of help, a way back to the default, and room to say what is wrong. */
class Field {
  element;
  input;
  name;
  schema = null;
  #reset;
  #problem;
  #standard = h("span");
  #onchange;

  constructor(name, input, { onchange, row = [], below = [] }) {
    const id = `sampling-${name}`;
    this.name = name;
    this.input = input;
    this.#onchange = onchange;
    this.#reset = iconButton("retry", text("setup.reset", text(`sampling.${name}`)), { onclick: () => this.#unset() });
    this.#problem = h("p", { class: "problem", id: `${id}-problem`, role: "status" });
    input.id = id;
    input.setAttribute("aria-describedby", `${id}-help ${id}-problem`);
    input.addEventListener("change", () => this.#changed());
    input.addEventListener("input", () => this.#problem.textContent && this.#judge());
    this.element = h(
      "div",
      { class: "field" },
      h("div", { class: "field-row" }, h("label", { for: id }, text(`sampling.${name}`)), this.#reset, ...row),
      ...below,
      this.#problem,
      h("p", { class: "help", id: `${id}-help` }, text(`sampling.help.${name}`), " ", this.#standard),
    );
  }

  /** Shows a value; undefined: none is set. What somebody is writing stays. */
  show(value, schema) {
    this.schema = schema;
    this.element.dataset.set = value === undefined ? "no" : "yes";
    this.#reset.hidden = value === undefined;
    this.input.disabled = !schema;
    if (!schema) return;
    const standard = this.writtenDefault();
    this.#standard.textContent = text("setup.standard", standard);
    this.input.placeholder = standard;
    if (this.input === document.activeElement && this.#isDirty(value)) return;
    this.#say("");
    this.input.value = value === undefined ? "" : this.written(value);
  }

  /** @internal To be passed on: a value, or undefined. */
  pass(value) {
    this.#say("");
    this.#onchange(value);
  }

  #isDirty(value) {
    const { value: got } = this.read();
    return JSON.stringify(got) !== JSON.stringify(value);
  }

  #changed() {
    if (this.#judge()) this.pass(this.read().value);
  }

  #judge() {
    const { problem = "" } = this.read();
    this.#say(problem);
    return !problem;
  }

  #unset() {
    this.input.value = "";
    this.pass(undefined);
    this.input.focus();
  }

  #say(problem) {
    this.#problem.textContent = problem;
    this.input.setAttribute("aria-invalid", String(problem !== ""));
  }
}

/** A number, written; with a slider beside it where its range is one that can be slid through. */
export class NumberField extends Field {
  #slider = null;

  constructor(name, { slider, onchange }) {
    const input = h("input", { type: "text", inputmode: "decimal", autocomplete: "off", class: "number" });
    const label = text("setup.slider", text(`sampling.${name}`));
    const range = slider ? h("input", { type: "range", "aria-label": label }) : null;
    super(name, input, { onchange, row: [input], below: range ? [range] : [] });
    this.#slider = range;
    range?.addEventListener("input", () => {
      input.value = this.written(Number(range.value));
      this.element.dataset.set = "yes";
      this.#fill();
    });
    range?.addEventListener("change", () => this.pass(Number(range.value)));
  }

  show(value, schema) {
    super.show(value, schema);
    if (this.#slider) this.#slider.disabled = !schema;
    if (schema) this.#slide(value ?? schema.default);
  }

  writtenDefault() {
    const value = this.schema.default;
    return value === null ? text(`sampling.without.${this.name}`) : this.written(value);
  }

  written(number) {
    return String(number);
  }

  read() {
    const words = this.input.value.trim();
    if (!words) return { value: undefined };
    const value = numberFrom(words);
    const range = rangeOf(this.schema);
    if (isIn(value, range)) return { value };
    const { low, high, above, whole } = range;
    const key = whole ? "setup.allowed.whole" : above ? "setup.allowed.above" : "setup.allowed.number";
    return { problem: text("setup.notAllowed", words, text(key, figure(low), figure(high))) };
  }

  #slide(value) {
    if (!this.#slider) return;
    const { low, high, above } = rangeOf(this.schema);
    const step = high - low > 1 ? 0.05 : 0.01;
    // A slider counts from its lowest value on, which is to be a round one.
    const min = above ? low + step : Math.ceil(low / step) * step;
    Object.assign(this.#slider, { min, max: high, step, value });
    this.#fill();
  }

  #fill() {
    const { min, max, value } = this.#slider;
    this.#slider.style.setProperty("--filled", `${(100 * (value - min)) / (max - min)}%`);
  }
}

/** Several short texts, one in each line; a line break in one of them is written \n. */
export class LinesField extends Field {
  constructor(name, { onchange }) {
    const input = h("textarea", { rows: 2, dir: "auto", spellcheck: "false" });
    super(name, input, { onchange, below: [input] });
  }

  writtenDefault() {
    return text(`sampling.without.${this.name}`);
  }

  written(lines) {
    return lines.map((line) => line.replaceAll("\\", "\\\\").replaceAll("\n", "\\n")).join("\n");
  }

  read() {
    const lines = this.input.value.split("\n").filter((line) => line !== "");
    if (!lines.length) return { value: undefined };
    const meant = { "\\n": "\n", "\\\\": "\\" };
    const value = lines.map((line) => line.replace(/\\./g, (pair) => meant[pair] ?? pair));
    const { items, maxItems } = this.schema.anyOf.find(({ type }) => type === "array");
    if (value.length > maxItems) {
      return { problem: text("setup.tooMany", figure(value.length), figure(maxItems)) };
    }
    const long = value.find((line) => line.length > items.maxLength);
    if (long) return { problem: text("setup.tooLong", figure(long.length), figure(items.maxLength)) };
    return { value };
  }
}
