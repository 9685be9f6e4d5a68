// A canvas that fits its place and is sharp, and dots by the hundred thousand: written as pixels.

import { number } from "../format.js";

/** The colours of the page as they are now, light or dark. */
export function colours(canvas) {
  const of = (name) => {
    canvas.style.color = `var(${name})`;
    return getComputedStyle(canvas).color;
  };
  const found = {
    text: of("--ink"),
    quiet: of("--quiet"),
    line: of("--line"),
    surface: of("--surface"),
    low: rgb(of("--lowers")),
    middle: rgb(of("--middle")),
    high: rgb(of("--raises")),
    none: rgb(of("--none")),
  };
  canvas.style.color = "";
  return found;
}

function rgb(text) {
  return text.match(/[\d.]+/g).slice(0, 3).map(Number);
}

/** Return 256 colours for ranks: low to high, and the one for what has no rank, as little-endian RGBA. */
export function ramp(theme) {
  return Uint32Array.from({ length: 256 }, (_, i) => {
    if (i === 255) return packed(theme.none);
    const t = i / 254;
    const [from, to, part] = t < 0.5 ? [theme.low, theme.middle, t * 2] : [theme.middle, theme.high, t * 2 - 1];
    return packed(from.map((each, k) => Math.round(each + (to[k] - each) * part)));
  });
}

export function packed([r, g, b]) {
  return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
}

/** Size a canvas to `width` × `height` CSS pixels; returns its context, whose unit is a CSS pixel. */
export function sized(canvas, width, height) {
  const scale = Math.min(window.devicePixelRatio || 1, 2);
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.font = `12px ${getComputedStyle(canvas).fontFamily}`;
  return { context, scale };
}

/** Square dots on the pixels of a canvas, put there at once by `show`. */
export class Dots {
  constructor(canvas, scale) {
    this.canvas = canvas;
    this.scale = scale;
    this.width = canvas.width;
    this.height = canvas.height;
    this.context = canvas.getContext("2d", { willReadFrequently: true });
    this.image = this.context.getImageData(0, 0, this.width, this.height);
    this.pixels = new Uint32Array(this.image.data.buffer);
  }

  /** Draw a dot whose middle is at (x, y), in CSS pixels, `side` device pixels wide. */
  dot(x, y, side, colour) {
    const left = Math.round(x * this.scale - side / 2);
    const top = Math.round(y * this.scale - side / 2);
    if (left < 0 || top < 0 || left + side > this.width || top + side > this.height) return;
    const isRound = side >= 4;
    for (let j = 0; j < side; j++) {
      const from = (top + j) * this.width + left;
      const inset = isRound && (j === 0 || j === side - 1) ? 1 : 0;
      for (let i = inset; i < side - inset; i++) this.pixels[from + i] = colour;
    }
  }

  show() {
    this.context.putImageData(this.image, 0, 0);
  }
}

/** Return how wide dots are, in device pixels, so that `count` of them stay apart as far as they can. */
export function dotSide(count, scale) {
  const side = count < 500 ? 8 : count < 1500 ? 6 : count < 8000 ? 4 : count < 30_000 ? 3 : 2;
  return Math.max(Math.round((side * scale) / 1.5), 2);
}

/** Return at most about `most` round numbers within [low, high]. */
export function ticks(low, high, most = 6) {
  const span = high - low;
  if (!(span > 0) || !Number.isFinite(span)) return Number.isFinite(low) ? [low] : [];
  const rough = span / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
  const found = [];
  for (let i = Math.ceil(low / step); i * step <= high + step * 1e-9; i++) found.push(Number((i * step).toPrecision(12)));
  return found;
}

/** A number on an axis, where little room is: from a hundred thousand on "500K", "1.2M". */
export function tickText(value) {
  if (Math.abs(value) < 1e5) return number(value, 3);
  return value.toLocaleString("en", { notation: "compact", maximumSignificantDigits: 3 }).replace("-", "−");
}

/** The text, without as much of its middle as it takes to fit: names often differ only at their ends. */
export function elided(text, fits) {
  let found = text;
  for (let kept = text.length - 1; kept > 1 && !fits(found); kept--) {
    found = `${text.slice(0, Math.ceil(kept / 2)).trimEnd()}…${text.slice(text.length - Math.floor(kept / 2)).trimStart()}`;
  }
  return found;
}

/** Call `draw` when an element's width changes, and when light turns to dark, until `signal` says so. */
export function redrawn(element, draw, signal) {
  let width = element.clientWidth;
  const resized = new ResizeObserver(() => {
    if (element.clientWidth === width) return;
    width = element.clientWidth;
    draw();
  });
  resized.observe(element);
  const themed = new MutationObserver(draw);
  themed.observe(document.documentElement, { attributeFilter: ["data-theme"] });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw, { signal });
  signal.addEventListener("abort", () => {
    resized.disconnect();
    themed.disconnect();
  });
}

/** Return where an event happened on a canvas, in CSS pixels. */
export function placeOf(canvas, event) {
  const box = canvas.getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
}
