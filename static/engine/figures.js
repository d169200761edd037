/** The engine in six figures, and all that is drawn once more as tables, for those who do not look at drawings. */

import { milliseconds } from "./words.js";
import { h, setText } from "../view/dom.js";
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
      const title = text(`engine.figures.${name}.what`);
      return h("div", { class: name, title }, h("dt", {}, text(`engine.figures.${name}.name`)), value);
    });
    this.element = h("dl", { class: "headlines" }, ...items);
  }

  update(picture) {
    for (const [name, value] of this.#values) {
      const [words, rest = ""] = FIGURES[name](picture);
      const [shown, more] = value.children;
      setText(shown, words);
      setText(more, rest);
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
    const namesOf = (ids) => ids.map((id) => signOf(id)?.letters ?? id).join(" ") || NONE;
    this.#ticks.replaceChildren(
      ...ticks.map(({ number, ms, rows, decode_tokens: decoded, prefill_tokens: read, admitted, ended, preempted }) => {
        const counts = [rows, decoded, read].map(figure);
        const left = namesOf([...ended, ...preempted]);
        return line([figure(number), milliseconds(ms), ...counts, namesOf(admitted), left]);
      }),
    );
  }
}

function table(name, columns, body) {
  const heads = columns.map((column) => h("th", { scope: "col" }, text(`engine.tables.${column}`)));
  const caption = h("caption", {}, text(`engine.tables.${name}`));
  const whole = h("table", {}, caption, h("thead", {}, h("tr", {}, ...heads)), body);
  return h("div", { class: "table-scroll", tabindex: "0" }, whole);
}

function line([first, ...rest]) {
  return h("tr", {}, h("th", { scope: "row" }, first), ...rest.map((words) => h("td", {}, words)));
}
