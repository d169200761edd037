/** The engine in six figures, and all that is drawn once more as tables, for those who do not look at drawings. */

import { milliseconds } from "./words.js";
import { h } from "../view/dom.js";
import { figure, percent } from "../view/format.js";
import { text } from "../texts.js";

const TABLED_TICKS = 20;
const TABLE_EVERY_MS = 1000;
const NONE = "–";

const FIGURES = {
  rate: ({ recent }) => [figure(Math.round(recent.sampled_per_s * 10) / 10)],
  rows: ({ stats, config }) => [figure(stats.running), text("engine.of", figure(config.max_num_seqs))],
  waiting: ({ stats }) => [figure(stats.waiting)],
  tick: ({ recent }) => [recent.ticks ? milliseconds(recent.mean_ms) : NONE],
  hits: ({ stats }) => [stats.queried_tokens ? percent(stats.hit_tokens / stats.queried_tokens) : NONE],
  free: ({ stats }) => [figure(stats.free_blocks), text("engine.of", figure(stats.blocks))],
};

export class Figures {
  element;
  #values = new Map();

  constructor() {
    const items = Object.keys(FIGURES).map((name) => {
      const value = h("dd", {}, h("b", {}, NONE), h("span", {}));
      this.#values.set(name, value);
      return h("div", { class: name, title: text(`engine.figures.${name}.what`) }, h("dt", {}, text(`engine.figures.${name}.name`)), value);
    });
    this.element = h("dl", { class: "headlines" }, ...items);
  }

  update(picture) {
    for (const [name, value] of this.#values) {
      const [words, rest = ""] = FIGURES[name](picture);
      const [shown, more] = value.children;
      if (shown.textContent !== words) shown.textContent = words;
      if (more.textContent !== rest) more.textContent = rest;
    }
  }
}

/** Written anew once a second at most, and only while they are open. */
export class Tables {
  element;
  #rows = h("tbody");
  #ticks = h("tbody");
  #written = -Infinity;

  constructor() {
    this.element = h(
      "details",
      { class: "tables" },
      h("summary", {}, text("engine.tables.summary")),
      table("running", ["row", "prompt", "cached", "answer", "blocks", "session"], this.#rows),
      table("ticks", ["tick", "ms", "rows", "decoded", "read", "entered", "left"], this.#ticks),
    );
  }

  update({ running }, history, { signOf, isMine }) {
    const now = performance.now();
    if (!this.element.open || now - this.#written < TABLE_EVERY_MS) return;
    this.#written = now;
    this.#rows.replaceChildren(
      ...running.map(({ id, prompt_tokens: prompt, cached_tokens: cached, output_tokens: answer, blocks, session }) => {
        const name = text("engine.row", signOf(id)?.letters ?? id, isMine(id));
        return line([`${name} (${id})`, figure(prompt), figure(cached), figure(answer), figure(blocks), session]);
      }),
    );
    const ticks = history.ticks.slice(-TABLED_TICKS).reverse();
    this.#ticks.replaceChildren(...ticks.map((tick) => line([
      figure(tick.number), milliseconds(tick.ms), figure(tick.rows), figure(tick.decode_tokens), figure(tick.prefill_tokens),
      ...[tick.admitted, [...tick.ended, ...tick.preempted]].map((ids) => ids.map((id) => signOf(id)?.letters ?? id).join(" ") || NONE),
    ])));
  }
}

function table(name, columns, body) {
  const heads = columns.map((column) => h("th", { scope: "col" }, text(`engine.tables.${column}`)));
  const caption = h("caption", {}, text(`engine.tables.${name}`));
  return h("div", { class: "table-scroll", tabindex: "0" }, h("table", {}, caption, h("thead", {}, h("tr", {}, ...heads)), body));
}

function line([first, ...rest]) {
  return h("tr", {}, h("th", { scope: "row" }, first), ...rest.map((words) => h("td", {}, words)));
}
