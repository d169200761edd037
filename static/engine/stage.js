/**
 * A canvas as sharp as the screen, which is drawn when it must be, and a slider under it: with a pointer, arrow keys
 * or a screen reader one goes through its parts, one by one.
 *
 * Knows sizes, colours of the theme and who looks where. It does not know what is drawn: it calls `draw(pen, size)`,
 * `size` in CSS pixels.
 */

import { h } from "../view/dom.js";

const RELABEL_MS = 5000;
const INKS = ["page", "raised", "sunken", "ink", "soft", "line", "accent", "live", "danger"];

export class Stage {
  element;
  /** {width, height} in CSS pixels; nothing is drawn while it has no width. */
  size = { width: 0, height: 0 };
  /** Colours of the theme by name, as a canvas understands them, and `isDark`. */
  inks = null;
  /** Whether the page reads from right to left, as of the last drawing. */
  isRtl = false;
  #canvas = h("canvas", { role: "img" });
  #slider;
  #draw;
  #frame = null;
  #labelled = -Infinity;

  /**
   * @param {{name: string, draw: (pen: CanvasRenderingContext2D, size: {width: number, height: number}) => void,
   *   onpoint: (x: number, y: number) => void, onstep: (index: number) => void, onkey?: (event: KeyboardEvent) => void,
   *   onleave: () => void, onresize: (width: number) => void}} options `name` is the slider's; `onpoint` is told of the
   *   pointer, `onstep` of the slider, `onleave` that neither is there any more
   */
  constructor({ name, draw, onpoint, onstep, onkey, onleave, onresize }) {
    this.#draw = draw;
    this.#slider = h("input", { type: "range", class: "visually-hidden", min: "0", "aria-label": name });
    this.element = h("div", { class: "stage" }, this.#canvas, this.#slider);
    this.#canvas.addEventListener("pointermove", ({ offsetX, offsetY }) => onpoint(offsetX, offsetY));
    this.#canvas.addEventListener("pointerdown", ({ offsetX, offsetY }) => onpoint(offsetX, offsetY));
    this.#canvas.addEventListener("pointerleave", ({ pointerType }) => pointerType === "mouse" && onleave());
    this.#slider.addEventListener("input", () => onstep(Number(this.#slider.value)));
    this.#slider.addEventListener("focus", () => onstep(Number(this.#slider.value)));
    this.#slider.addEventListener("blur", onleave);
    if (onkey) this.#slider.addEventListener("keydown", onkey);
    new ResizeObserver(([{ contentRect }]) => {
      if (contentRect.width === this.size.width) return;
      this.size.width = contentRect.width;
      onresize(contentRect.width);
      this.redraw();
    }).observe(this.element);
    const recolour = () => {
      this.inks = null;
      this.redraw();
    };
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
    new MutationObserver(recolour).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  }

  set height(height) {
    if (height === this.size.height) return;
    this.size.height = height;
    this.#canvas.style.height = `${height}px`;
    this.redraw();
  }

  /** Draws before the next frame, however often it was asked for until then. */
  redraw() {
    this.#frame ??= requestAnimationFrame(() => {
      this.#frame = null;
      if (this.size.width) this.#paint();
    });
  }

  /** What the picture shows, in words. Said rarely: nobody could listen to a label that changes all the time. */
  set label(words) {
    if (performance.now() - this.#labelled < RELABEL_MS) return;
    this.#labelled = performance.now();
    this.#canvas.setAttribute("aria-label", words);
  }

  /** Of how many parts the slider goes through, where it stands, and what that part is. */
  setSlider(count, at, words) {
    this.#slider.max = String(Math.max(count - 1, 0));
    this.#slider.disabled = count === 0;
    if (at === null) return;
    this.#slider.value = String(at);
    this.#slider.setAttribute("aria-valuetext", words);
  }

  #paint() {
    this.inks ??= this.#readInks();
    this.isRtl = getComputedStyle(this.element).direction === "rtl";
    const { width, height } = this.size;
    const scale = devicePixelRatio;
    const [across, down] = [Math.round(width * scale), Math.round(height * scale)];
    if (this.#canvas.width !== across || this.#canvas.height !== down) {
      Object.assign(this.#canvas, { width: across, height: down });
    }
    const pen = this.#canvas.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, width, height);
    this.#draw(pen, this.size);
  }

  /** A canvas knows no custom properties: each colour is computed on an element first. */
  #readInks() {
    const { style } = this.#canvas;
    const colourOf = (value) => {
      style.color = value;
      return getComputedStyle(this.#canvas).color;
    };
    const inks = Object.fromEntries(INKS.map((name) => [name, colourOf(`var(--${name})`)]));
    const isDark = colourOf("light-dark(#000, #fff)") === "rgb(255, 255, 255)";
    style.color = "";
    return { ...inks, isDark, font: getComputedStyle(this.#canvas).fontFamily };
  }
}

const hues = new Map();

/** The colour of a hue as the theme has it; the same as `--owner` in engine.css. */
export function inkOf(hue, isDark) {
  const key = isDark ? hue : -1 - hue;
  if (!hues.has(key)) hues.set(key, isDark ? `oklch(0.76 0.11 ${hue})` : `oklch(0.56 0.11 ${hue})`);
  return hues.get(key);
}
