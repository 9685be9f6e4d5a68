// Many curves along a feature, thin, and their mean.

import { svg, visible } from "../dom.js";
import { tickText, ticks } from "./canvas.js";

const [LEAST, MOST] = [240, 960];
const [RIGHT, TOP, BOTTOM] = [12, 10, 224];
const [LEAST_AXIS, UP] = [64, 4]; // of the axis at the left: its width, and its numbers
const [AXIS, SLANTED] = [36, 96]; // below the curves; of words that have no room beside each other
const LETTER = 8; // pixels of a wide one
const LONGEST = 16; // letters

/**
 * `width`: of its place; `values`: numbers, ascending; `words`: what is written at each of them, null where they are
 * numbers; `curves` [[score, …], …]; `mean` [score, …]; `threshold` or null; `tick`: writes a score.
 */
export function drawCurves({ width, values, words = null, curves, mean, threshold, tick: up = tickText, label }) {
  const right = Math.min(Math.max(width, LEAST), MOST);
  const all = [...curves.flat(), ...(threshold === null ? [] : [threshold])];
  const [low, high] = [Math.min(...all), Math.max(...all)];
  const marks = ticks(low, high, UP);
  const left = Math.max(LEAST_AXIS, ...marks.map((mark) => up(mark).length * LETTER + 12));
  const inset = words ? (right - left - RIGHT) / (2 * words.length) : 0; // each word has as much room
  const x = (value) => left + inset + ((value - values[0]) / (values.at(-1) - values[0] || 1)) * (right - left - RIGHT - 2 * inset);
  const y = (score) => BOTTOM - ((score - low) / (high - low || 1)) * (BOTTOM - TOP);
  const line = (scores, name) =>
    svg("polyline", { class: name, points: scores.map((score, i) => `${x(values[i]).toFixed(1)},${y(score).toFixed(1)}`).join(" ") });
  const texts = words?.map((word) => shortened(visible(word)));
  const isSlanted = texts?.some((text) => text.length * LETTER > 2 * inset) ?? false;
  const height = BOTTOM + (isSlanted ? SLANTED : AXIS);
  return svg(
    "svg",
    { viewBox: `0 0 ${right} ${height}`, width: right, height, class: "rates curves", role: "img", "aria-label": label },
    marks.map((tick) => [
      svg("line", { class: "grid", x1: left, x2: right - RIGHT, y1: y(tick), y2: y(tick) }),
      svg("text", { x: left - 6, y: y(tick) + 4, "text-anchor": "end" }, up(tick)),
    ]),
    texts
      ? texts.map((text, i) => named(x(values[i]), text, isSlanted))
      : ticks(values[0], values.at(-1), right / 110).map((tick) => named(x(tick), tickText(tick), false)),
    curves.map((scores) => line(scores, "one")),
    threshold !== null && svg("line", { class: "diagonal", x1: left, x2: right - RIGHT, y1: y(threshold), y2: y(threshold) }),
    line(mean, "mean"),
    words && mean.map((score, i) => svg("circle", { class: "mean", cx: x(values[i]), cy: y(score), r: 5 })),
  );
}

function named(at, text, isSlanted) {
  const place = isSlanted ? { transform: `translate(${at + 4} ${BOTTOM + 16}) rotate(-35)`, "text-anchor": "end" } : { x: at, y: BOTTOM + 24, "text-anchor": "middle" };
  return svg("text", place, text);
}

const shortened = (text) => (text.length > LONGEST ? `${text.slice(0, LONGEST - 1)}…` : text);
