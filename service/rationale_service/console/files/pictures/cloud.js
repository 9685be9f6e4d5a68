// A cloud of dots on two axes: a feature's value and its attribution, or a map of rows.

import { visible } from "../dom.js";
import { Dots, colours, dotSide, elided, ramp, sized, tickText, ticks } from "./canvas.js";

const EDGE = 12;
const AXIS = 40;
const UP = 5; // numbers on the axis at the left

/**
 * Draw it; returns {at(x, y) → place | null, within(x1, y1, x2, y2) → places}.
 *
 * xs, ys: of the n places; ranks: Uint8Array of colours, or null; words: where x is words' codes, their words;
 * labels: {x, y} of the axes, or null for a map without any; tick: writes a number of the axis at the left.
 */
export function drawCloud(canvas, width, height, { xs, ys, n, ranks, words = null, labels = null, tick = tickText, chosen = [] }) {
  const theme = colours(canvas);
  const { context, scale } = sized(canvas, width, height);
  const bottom = height - (labels ? AXIS : EDGE);
  const right = width - EDGE;
  const [low, high] = words ? [-0.6, words.length - 0.4] : padded(xs, n);
  const [under, over] = padded(ys, n);
  const left = labels ? axisWidth(context, ticks(under, over, UP).map(tick)) : EDGE;
  const toX = (value) => left + ((value - low) / (high - low)) * (right - left);
  const toY = (value) => bottom - ((value - under) / (over - under)) * (bottom - EDGE);
  context.fillStyle = theme.surface;
  context.fillRect(0, 0, width, height);
  if (labels) axes(context, theme, { left, right, bottom, low, high, under, over, toX, toY, words, labels, tick, height });

  const dots = new Dots(canvas, scale);
  const palette = ramp(theme);
  const side = dotSide(n, scale);
  const px = new Float32Array(n).fill(NaN);
  const py = new Float32Array(n);
  for (let i = 0; i < n; i++) {
    if (Number.isNaN(xs[i]) || Number.isNaN(ys[i])) continue;
    px[i] = toX(words ? xs[i] + jitter(i) * 0.7 : xs[i]);
    py[i] = toY(ys[i]);
    dots.dot(px[i], py[i], side, palette[ranks === null ? 255 : ranks[i]]);
  }
  dots.show();
  context.strokeStyle = theme.text;
  context.lineWidth = 1.5;
  for (const place of chosen) {
    if (place >= n || Number.isNaN(px[place])) continue;
    context.beginPath();
    context.arc(px[place], py[place], 5, 0, 2 * Math.PI);
    context.stroke();
  }
  return { at: (x, y) => nearest(px, py, x, y, n), within: (...box) => within(px, py, n, ...box) };
}

function axes(context, theme, { left, right, bottom, low, high, under, over, toX, toY, words, labels, tick: up, height }) {
  context.strokeStyle = theme.line;
  context.fillStyle = theme.quiet;
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (const tick of ticks(under, over, UP)) {
    const y = Math.round(toY(tick)) + 0.5;
    line(context, left, y, right, y);
    context.fillText(up(tick), left - 6, y);
  }
  if (under < 0 && over > 0) {
    context.strokeStyle = theme.quiet;
    line(context, left, Math.round(toY(0)) + 0.5, right, Math.round(toY(0)) + 0.5);
  }
  context.textAlign = "center";
  context.textBaseline = "alphabetic";
  const room = (right - left) / (words ? words.length : 1);
  const each = words ? Math.max(1, Math.ceil(40 / room)) : 1;
  const marks = words ? words.map((_, i) => i).filter((i) => i % each === 0) : ticks(low, high, (right - left) / 90);
  for (const tick of marks) {
    const text = words ? cut(words[tick], Math.max(3, Math.floor((room * each) / 8))) : tickText(tick);
    const half = context.measureText(text).width / 2;
    context.fillText(text, Math.min(toX(tick), right + EDGE - half - 2), bottom + 16);
  }
  context.fillStyle = theme.text;
  context.fillText(cut(labels.x, 60), (left + right) / 2, height - 6);
  context.save();
  context.translate(12, (bottom + EDGE) / 2);
  context.rotate(-Math.PI / 2);
  context.fillText(cut(labels.y, 40), 0, 0);
  context.restore();
}

/** The room that the numbers of the axis at the left take, and its name beside them. */
function axisWidth(context, marks) {
  return Math.max(56, ...marks.map((mark) => context.measureText(mark).width + 28));
}

const cut = (name, most) => elided(visible(name), (text) => text.length <= most);

function padded(values, n) {
  let low = Infinity;
  let high = -Infinity;
  for (let i = 0; i < n; i++) {
    const value = values[i];
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (!(low <= high)) return [0, 1];
  const margin = (high - low || Math.abs(high) || 1) * 0.03;
  return [low - margin, high + margin];
}

/** Return the same number in [-0.5, 0.5) for the same place each time. */
function jitter(i) {
  return ((Math.imul(i + 1, 2654435761) >>> 0) / 2 ** 32) - 0.5;
}

function nearest(px, py, x, y, n) {
  let best = 14 ** 2;
  let place = null;
  for (let i = 0; i < n; i++) {
    const distance = (px[i] - x) ** 2 + (py[i] - y) ** 2;
    if (distance < best) {
      best = distance;
      place = i;
    }
  }
  return place;
}

function within(px, py, n, x1, y1, x2, y2) {
  const found = [];
  const [left, right] = [Math.min(x1, x2), Math.max(x1, x2)];
  const [top, bottom] = [Math.min(y1, y2), Math.max(y1, y2)];
  for (let i = 0; i < n; i++) if (px[i] >= left && px[i] <= right && py[i] >= top && py[i] <= bottom) found.push(i);
  return found;
}

function line(context, x1, y1, x2, y2) {
  context.beginPath();
  context.moveTo(x1, y1);
  context.lineTo(x2, y2);
  context.stroke();
}
