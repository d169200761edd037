/**
 * All of the KV memory as a map, a cell for each block: whose it is, how full, shared, kept or free.
 *
 * Knows who owns which block and how a cell is drawn. It calls `onpick(id)` when somebody's block is pointed at, and
 * with null when none is.
 */

import { inkOf, Stage } from "./stage.js";
import { h, setText } from "../view/dom.js";
import { figure } from "../view/format.js";
import { text } from "../texts.js";

const [SMALLEST, LARGEST] = [4, 22];
const TALLEST = 360;
/** From this size on a cell has room for a letter. */
const READABLE = 13;
const KINDS = { ".": "free", c: "kept", "-": "held", "+": "partial", "#": "full", s: "shared" };

export class BlockMap {
  element;
  #owners;
  #isMine;
  #onpick;
  #stage;
  #readout = h("p", { class: "readout" });
  #cells = { size: LARGEST, across: 1 };
  #kinds = "";
  #blockSize = 16;
  /** Block -> the ids of those who hold it, */
  #holders = new Map();
  /** and how many of its slots are filled. */
  #filled = new Map();
  #running = new Map();
  #at = null;
  #picked = null;

  constructor(owners, { isMine, onpick }) {
    this.#owners = owners;
    this.#isMine = isMine;
    this.#onpick = onpick;
    this.#stage = new Stage({
      name: text("engine.blocks.explore"),
      draw: (pen) => this.#draw(pen),
      onpoint: (x, y) => this.#look(this.#blockAt(x, y)),
      onstep: (index) => this.#look(index),
      onkey: (event) => this.#key(event),
      onleave: () => this.#look(null),
      onresize: () => this.#lay(),
    });
    this.element = h("div", { class: "blocks" }, this.#stage.element, this.#readout, legend());
  }

  update({ blocks, running, config }) {
    const isNew = blocks.map.length !== this.#kinds.length;
    this.#kinds = blocks.map;
    this.#blockSize = config.block_size;
    this.#running = new Map(running.map((each) => [each.id, each]));
    this.#holders = new Map();
    this.#filled = new Map();
    for (const sequence of running) this.#own(sequence);
    if (isNew) this.#lay();
    this.#stage.label = this.#summary();
    // The block that is looked at may have come to another owner.
    if (this.#at === null) this.#tell();
    else this.#look(this.#at);
    this.#stage.redraw();
  }

  highlight(id) {
    this.#picked = id;
    this.#stage.redraw();
  }

  #own({ id, table, computed_tokens: computed }) {
    let left = computed;
    for (const [first, count] of table) {
      for (let block = first; block < first + count; block += 1) {
        if (this.#holders.has(block)) this.#holders.get(block).push(id);
        else this.#holders.set(block, [id]);
        this.#filled.set(block, Math.max(0, Math.min(left, this.#blockSize)));
        left -= this.#blockSize;
      }
    }
  }

  /** As large cells as fit into the height that the map may have. */
  #lay() {
    const { width } = this.#stage.size;
    const count = this.#kinds.length;
    if (!width || !count) return;
    let size = LARGEST;
    while (size > SMALLEST && Math.ceil(count / Math.floor(width / size)) * size > TALLEST) size -= 1;
    this.#cells = { size, across: Math.max(1, Math.floor(width / size)) };
    this.#stage.height = Math.ceil(count / this.#cells.across) * size;
  }

  // -- looking ----------------------------------------------------------------------------------------------

  #blockAt(x, y) {
    const { size, across } = this.#cells;
    const column = Math.floor((this.#stage.isRtl ? this.#stage.size.width - x : x) / size);
    const block = Math.floor(y / size) * across + column;
    return column < across && block >= 0 && block < this.#kinds.length ? block : null;
  }

  #look(block) {
    this.#at = block;
    const id = this.#holders.get(block)?.[0] ?? null;
    if (id !== this.#picked) {
      this.#picked = id;
      this.#onpick(id);
    }
    this.#tell();
    this.#stage.redraw();
  }

  /** Up and down go to the line above and below; the slider itself knows of one block after the other only. */
  #key(event) {
    const lines = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (!lines) return;
    event.preventDefault();
    const block = (this.#at ?? 0) + lines * this.#cells.across;
    if (block >= 0 && block < this.#kinds.length) this.#look(block);
  }

  #tell() {
    const words = this.#at === null ? this.#summary() : this.#wordsOf(this.#at);
    this.#stage.setSlider(this.#kinds.length, this.#at, words);
    setText(this.#readout, words);
  }

  #summary() {
    const held = this.#holders.size;
    const kept = this.#kinds.split("c").length - 1;
    return text("engine.blocks.summary", ...[held, kept, this.#kinds.length - held - kept].map(figure));
  }

  #wordsOf(block) {
    const kind = KINDS[this.#kinds[block]];
    const holders = this.#holders.get(block);
    const name = text("engine.blocks.name", figure(block + 1));
    if (!holders) return text("engine.blocks.idle", name, text(`engine.blocks.${kind}`));
    const whose = holders.map((id) => text("engine.row", this.#owners.signOf(id)?.letters ?? id, this.#isMine(id)));
    const filled = [this.#filled.get(block), this.#blockSize].map(figure);
    const ended = this.#running.get(holders[0])?.is_padding ?? false;
    return text("engine.blocks.owned", name, text(`engine.blocks.${kind}`), whose, ...filled, ended);
  }

  // -- drawing ----------------------------------------------------------------------------------------------

  #draw(pen) {
    this.#drawGrid(pen);
    // Whoever was pointed at may have given all blocks back.
    const picked = this.#running.has(this.#picked) ? this.#picked : null;
    for (let block = 0; block < this.#kinds.length; block += 1) {
      if (this.#kinds[block] !== ".") this.#drawCell(pen, block, picked);
    }
    if (this.#at !== null) this.#drawCursor(pen);
  }

  /** Lines between cells, over one field: of thousands of free cells none needs to be drawn. */
  #drawGrid(pen) {
    const { inks, isRtl, size: stage } = this.#stage;
    const { size, across } = this.#cells;
    const gap = gapOf(size);
    const [width, rows] = [across * size, Math.floor(this.#kinds.length / across)];
    const rest = (this.#kinds.length % across) * size;
    const start = isRtl ? stage.width - width : 0;
    pen.fillStyle = inks.isDark ? inks.page : inks.sunken;
    pen.fillRect(start, 0, width, rows * size);
    pen.fillRect(isRtl ? stage.width - rest : 0, rows * size, rest, size);
    pen.fillStyle = inks.raised;
    for (let column = 1; column <= across; column += 1) pen.fillRect(start + column * size - gap, 0, gap, stage.height);
    for (let row = 1; row <= rows + 1; row += 1) pen.fillRect(start, row * size - gap, width, gap);
  }

  #placeOf(block) {
    const { size, across } = this.#cells;
    const column = block % across;
    const x = this.#stage.isRtl ? this.#stage.size.width - (column + 1) * size : column * size;
    return [x, Math.floor(block / across) * size];
  }

  #drawCell(pen, block, picked) {
    const [x, y] = this.#placeOf(block);
    const side = this.#cells.size - gapOf(this.#cells.size);
    const holders = this.#holders.get(block);
    if (holders) {
      pen.globalAlpha = picked && !holders.includes(picked) ? 0.28 : 1;
      this.#drawHeld(pen, block, holders, x, y, side);
      pen.globalAlpha = 1;
    } else {
      const dot = Math.max(2, Math.round(side / 3));
      pen.fillStyle = this.#stage.inks.soft;
      pen.fillRect(x + (side - dot) / 2, y + (side - dot) / 2, dot, dot);
    }
  }

  /** Filled from below as far as it holds tokens; of several holders the first two share the cell. */
  #drawHeld(pen, block, holders, x, y, side) {
    const { inks } = this.#stage;
    const [one, other] = holders.map((id) => this.#owners.signOf(id));
    const height = Math.round((side * this.#filled.get(block)) / this.#blockSize);
    if (height < side) {
      pen.fillStyle = inks.line;
      pen.fillRect(x, y, side, side);
    }
    pen.fillStyle = inkOf(one?.hue ?? 0, inks.isDark);
    pen.fillRect(x, y + side - height, side, height);
    if (other) {
      pen.fillStyle = inkOf(other.hue, inks.isDark);
      pen.beginPath();
      pen.moveTo(x + side, y);
      pen.lineTo(x + side, y + side);
      pen.lineTo(x, y + side);
      pen.fill();
    }
    if (this.#running.get(holders[0])?.is_padding) {
      pen.fillStyle = inks.page;
      pen.fillRect(x, y + side / 2 - 1, side, 2);
    }
    if (side < READABLE || height < side / 2 + 3) return;
    pen.fillStyle = inks.isDark ? "#0b0f0e" : "#fff";
    pen.font = `700 ${one.letters.length > 1 ? 8 : 10}px ${inks.font}`;
    pen.textAlign = "center";
    pen.fillText(other ? `${one.letters}+` : one.letters, x + side / 2, y + side / 2 + 3.5);
  }

  #drawCursor(pen) {
    const [x, y] = this.#placeOf(this.#at);
    pen.strokeStyle = this.#stage.inks.ink;
    pen.lineWidth = 2;
    pen.strokeRect(x - 1, y - 1, this.#cells.size, this.#cells.size);
  }
}

/** Between two cells of this size. */
function gapOf(size) {
  return size > 8 ? 2 : 1;
}

function legend() {
  const items = ["full", "partial", "shared", "held", "kept", "free"].map((kind) =>
    h("li", {}, h("i", { class: `cell ${kind}` }), text(`engine.blocks.${kind}`)),
  );
  return h("ul", { class: "legend", role: "list" }, ...items);
}
