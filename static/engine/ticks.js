/**
 * The last ticks side by side, the newest at the end: how many rows each had, how long it took, and below, on the same
 * axis, from when to when each row ran.
 *
 * Knows a History and how it is drawn. It does not know where it comes from. It calls `onpick(id)` when a row is
 * pointed at, and with null when none is.
 */

import { inkOf, Stage } from "./stage.js";
import { milliseconds, stayWords, tickWords } from "./words.js";
import { h, setText } from "../view/dom.js";
import { figure } from "../view/format.js";
import { text } from "../texts.js";

const STEP = 7;
const BAR = 5;
const EDGE = 10;
const COUNTS = { top: 16, height: 24 };
const BARS = { top: 70, height: 112 };
const STAYS = { top: 212, lanes: 6, height: 240, lane: 18, thinnest: 3 };
// A bar that would dwarf all others is cut, and shows it.
const TALLEST = 4;

const still = matchMedia("(prefers-reduced-motion: reduce)");

export class TickChart {
  element;
  #history;
  #owners;
  #isMine;
  #onpick;
  #stage;
  #readout = h("p", { class: "readout" });
  /** The tick at the end of the axis, with a fraction while the picture slides. */
  #head = 0;
  #slide = null;
  /** What is looked at: a tick's number, and a stay. */
  #number = null;
  #picked = null;

  constructor(history, owners, { isMine, onpick }) {
    this.#history = history;
    this.#owners = owners;
    this.#isMine = isMine;
    this.#onpick = onpick;
    this.#stage = new Stage({
      name: text("engine.ticks.explore"),
      draw: (pen, size) => this.#draw(pen, size),
      onpoint: (x, y) => this.#point(x, y),
      onstep: (index) => this.#look(this.#shown()[index]?.number ?? null, null),
      onleave: () => this.#look(null, null),
      onresize: () => this.#tell(),
    });
    this.#stage.height = STAYS.top + STAYS.lanes * STAYS.lane;
    this.element = h("div", { class: "ticks" }, this.#stage.element, this.#readout);
  }

  /** The history has grown. The picture slides there in `ms`, the time until it will grow again. */
  update(ms) {
    const { last } = this.#history;
    const isNear = last >= this.#head && last - this.#head < 64;
    if (still.matches || !isNear) this.#head = last;
    else if (last > this.#head) this.#slide = { from: this.#head, to: last, begun: performance.now(), ms };
    this.#stage.height = STAYS.top + this.#numLanes() * this.#laneHeight();
    const tick = this.#history.ticks.at(-1);
    this.#stage.label = tick ? text("engine.ticks.label", tickWords(tick)) : text("engine.ticks.none");
    this.#tell();
    this.#stage.redraw();
  }

  /** Only what is drawn in another way: somebody's row is pointed at elsewhere. */
  highlight(id) {
    this.#picked = id;
    this.#stage.redraw();
  }

  // -- looking ----------------------------------------------------------------------------------------------

  #look(number, id) {
    this.#number = number;
    if (id !== this.#picked) {
      this.#picked = id;
      this.#onpick(id);
    }
    this.#tell();
    this.#stage.redraw();
  }

  #point(x, y) {
    const along = this.#stage.isRtl ? x : this.#stage.size.width - x;
    const number = Math.ceil(this.#head - (along - EDGE) / STEP);
    const found = this.#history.ticks.find((tick) => tick.number === number);
    const lane = Math.floor((y - STAYS.top) / this.#laneHeight());
    const stay = lane < 0 ? null : this.#stayAt(number, lane);
    this.#look(found ? number : null, stay?.id ?? null);
  }

  #stayAt(number, lane) {
    const { last, stays } = this.#history;
    return stays.find((stay) => stay.lane === lane && stay.from <= number && number <= (stay.to ?? last));
  }

  #tell() {
    const shown = this.#shown();
    const at = shown.findIndex(({ number }) => number === this.#number);
    const tick = at < 0 ? shown.at(-1) : shown[at];
    const stay = this.#picked && this.#history.stays.findLast(({ id }) => id === this.#picked);
    const words = [tick && tickWords(tick)];
    if (stay) words.unshift(stayWords(stay, this.#owners.signOf(stay.id), this.#isMine(stay.id)));
    const said = words.filter(Boolean).join(" ");
    this.#stage.setSlider(shown.length, at < 0 ? shown.length - 1 : at, said);
    setText(this.#readout, said);
  }

  /** The ticks that have a place on the axis. */
  #shown() {
    const places = Math.floor((this.#stage.size.width - 2 * EDGE) / STEP);
    return this.#history.ticks.slice(-Math.max(places, 1));
  }

  // -- drawing ----------------------------------------------------------------------------------------------

  #draw(pen, { width }) {
    this.#moveOn();
    // Right to left, time does so, too.
    const mirror = (x, across) => (this.#stage.isRtl ? width - x - across : x);
    const place = (number, count = 1) =>
      mirror(width - EDGE - (this.#head - number + 1) * STEP, (count - 1) * STEP + BAR);
    const from = this.#head - (width - 2 * EDGE) / STEP;
    const ticks = this.#history.ticks.filter(({ number }) => number > from - 1 && number <= Math.ceil(this.#head));
    if (!this.#history.last) this.#drawPromise(pen, width);
    if (this.#number !== null) this.#drawCursor(pen, place(this.#number));
    this.#drawCounts(pen, ticks, place);
    const scale = scaleOf(ticks);
    this.#drawBars(pen, ticks, place, { width, scale });
    this.#drawStays(pen, Math.max(from, this.#history.ticks[0]?.number ?? 0), place);
    this.#drawNames(pen, { width, scale });
  }

  #moveOn() {
    if (!this.#slide) return;
    const { from, to, begun, ms } = this.#slide;
    const done = Math.min(1, (performance.now() - begun) / ms);
    this.#head = from + (to - from) * done;
    if (done === 1) this.#slide = null;
    else this.#stage.redraw();
  }

  /** Where nothing has run yet: what it will look like, hardly to be seen. */
  #drawPromise(pen, width) {
    pen.fillStyle = this.#stage.inks.sunken;
    const count = Math.floor((width - 2 * EDGE) / STEP);
    for (let i = 0; i < count; i += 1) {
      const height = BARS.height * (0.34 + 0.1 * Math.sin(i / 3.1) + 0.08 * Math.sin(i / 1.3));
      pen.fillRect(EDGE + i * STEP, BARS.top + BARS.height - height, BAR, height);
    }
    for (let lane = 0; lane < STAYS.lanes; lane += 1) {
      for (let from = lane * 5; from < count; from += 34 + lane * 7) {
        const across = Math.min(26 + lane * 6, count - from) * STEP - 2;
        pen.beginPath();
        pen.roundRect(EDGE + from * STEP, STAYS.top + lane * STAYS.lane, across, STAYS.lane - 3, 5);
        pen.fill();
      }
    }
  }

  #drawCursor(pen, x) {
    pen.fillStyle = this.#stage.inks.line;
    pen.fillRect(x - 1, COUNTS.top, BAR + 2, this.#stage.size.height - COUNTS.top);
  }

  /** A step for each tick, as high as it has rows, with the number wherever it changes. */
  #drawCounts(pen, ticks, place) {
    const { ink, soft, font } = this.#stage.inks;
    const most = Math.max(4, ...ticks.map(({ rows }) => rows));
    const heightOf = (rows) => Math.max(2, (COUNTS.height * rows) / most);
    const bottom = COUNTS.top + COUNTS.height + 12;
    pen.font = `600 10px ${font}`;
    pen.textAlign = "center";
    let labelled = -Infinity;
    ticks.forEach(({ number, rows }, i) => {
      const [x, height] = [place(number), heightOf(rows)];
      pen.fillStyle = soft;
      pen.fillRect(x, bottom - height, BAR, height);
      if (rows === ticks[i - 1]?.rows || number - labelled < 3) return;
      labelled = number;
      pen.fillStyle = ink;
      const words = figure(rows);
      const half = pen.measureText(words).width / 2;
      // Over a step that leaves the picture it stays whole.
      const middle = Math.min(Math.max(x + BAR / 2, half), this.#stage.size.width - half);
      pen.fillText(words, middle, bottom - height - 4);
    });
  }

  #drawBars(pen, ticks, place, { width, scale }) {
    const { accent, live, page } = this.#stage.inks;
    const bottom = BARS.top + BARS.height;
    this.#drawGrid(pen, width);
    for (const { number, ms, decode_tokens: decoded, prefill_tokens: read } of ticks) {
      const x = place(number);
      const height = Math.max(2, (BARS.height * Math.min(ms, scale)) / scale);
      const ofDecode = height * (decoded / (decoded + read || 1));
      pen.fillStyle = accent;
      pen.fillRect(x, bottom - ofDecode, BAR, ofDecode);
      pen.fillStyle = live;
      const ofRead = height - ofDecode - (decoded ? 1 : 0);
      if (read && ofRead > 0) pen.fillRect(x, bottom - height, BAR, ofRead);
      if (ms <= scale) continue;
      pen.fillStyle = page;
      pen.fillRect(x - 1, BARS.top + 6, BAR + 2, 2);
    }
  }

  #drawGrid(pen, width) {
    pen.fillStyle = this.#stage.inks.line;
    for (const share of [0, 0.5, 1]) {
      const y = Math.round(BARS.top + BARS.height * (1 - share));
      pen.fillRect(this.#stage.isRtl ? EDGE : 0, y, width - EDGE, 1);
    }
  }

  #drawStays(pen, from, place) {
    const { last, stays } = this.#history;
    const lane = this.#laneHeight();
    const height = lane - (lane > 6 ? 3 : 1);
    // Whoever was pointed at may have left the picture.
    const picked = stays.some(({ id }) => id === this.#picked) ? this.#picked : null;
    for (const stay of stays) {
      const first = Math.max(stay.from, Math.floor(from));
      const end = Math.min(stay.to ?? last, Math.ceil(this.#head));
      if (end < first) continue;
      const x = place(first, end - first + 1);
      pen.globalAlpha = picked && picked !== stay.id ? 0.3 : 1;
      this.#drawStay(pen, stay, { x, y: STAYS.top + stay.lane * lane, across: (end - first) * STEP + BAR, height });
    }
    pen.globalAlpha = 1;
  }

  #drawStay(pen, { id, to, end }, { x, y, across, height }) {
    const { inks, isRtl } = this.#stage;
    const { letters, hue } = this.#owners.signOf(id) ?? { letters: "", hue: 0 };
    pen.fillStyle = inkOf(hue, inks.isDark);
    pen.beginPath();
    const [open, round] = height < 6 ? [0, 0] : [2, to === null ? 2 : 7];
    pen.roundRect(x, y, across, height, isRtl ? [round, open, open, round] : [open, round, round, open]);
    pen.fill();
    if (this.#isMine(id)) {
      pen.strokeStyle = inks.ink;
      pen.lineWidth = 1.5;
      pen.stroke();
    }
    if (end === "preempted") {
      pen.fillStyle = inks.danger;
      pen.fillRect(isRtl ? x : x + across - 2, y, 2, height);
    }
    if (height >= 11 && across > 16) {
      pen.fillStyle = inks.isDark ? "#0b0f0e" : "#fff";
      pen.font = `700 10px ${inks.font}`;
      pen.textAlign = isRtl ? "right" : "left";
      const words = this.#isMine(id) && across > 60 ? text("engine.ticks.yours", letters) : letters;
      pen.fillText(words, isRtl ? x + across - 5 : x + 5, y + height / 2 + 3.5);
    }
  }

  /** What the parts of the picture are, over it. */
  #drawNames(pen, { width, scale }) {
    const { soft, font, raised } = this.#stage.inks;
    const { isRtl } = this.#stage;
    const names = [
      [600, text("engine.ticks.rows"), COUNTS.top - 4],
      [400, text("engine.ticks.scale", milliseconds(scale)), BARS.top - 3],
      [400, milliseconds(scale / 2), BARS.top + BARS.height / 2 - 3],
      [600, text("engine.ticks.runs"), STAYS.top - 8],
    ];
    pen.textAlign = isRtl ? "right" : "left";
    for (const [weight, words, y] of names) {
      pen.font = `${weight} 11px ${font}`;
      const across = pen.measureText(words).width + 6;
      pen.fillStyle = raised;
      pen.fillRect(isRtl ? width - across : 0, y - 9, across, 11);
      pen.fillStyle = soft;
      pen.fillText(words, isRtl ? width : 0, y);
    }
  }

  #numLanes() {
    return Math.max(STAYS.lanes, ...this.#history.stays.map(({ lane }) => lane + 1));
  }

  #laneHeight() {
    return Math.min(STAYS.lane, Math.max(STAYS.thinnest, Math.floor(STAYS.height / this.#numLanes())));
  }
}

/** Milliseconds at the top of the axis: round ones, above most ticks. */
function scaleOf(ticks) {
  if (!ticks.length) return 10;
  const sorted = ticks.map(({ ms }) => ms).sort((a, b) => a - b);
  const most = Math.min(sorted.at(-1), TALLEST * sorted[Math.floor(sorted.length / 2)]);
  const power = 10 ** Math.floor(Math.log10(most));
  return power * [1, 2, 4, 10].find((factor) => factor * power >= most);
}
