// Many curves along a feature, thin, and their mean.

import { svg } from "../dom.js";
import { number } from "../format.js";
import { ticks } from "./canvas.js";

const [LEAST, MOST] = [240, 760];
const [HEIGHT, LEFT, TOP, BOTTOM] = [260, 64, 10, 224];

/** `width`: of its place; `values` ascending; `curves` [[score, …], …]; `mean` [score, …]; `threshold` or null. */
export function drawCurves({ width, values, curves, mean, threshold, label }) {
  const right = Math.min(Math.max(width, LEAST), MOST);
  const all = [...curves.flat(), ...(threshold === null ? [] : [threshold])];
  const [low, high] = [Math.min(...all), Math.max(...all)];
  const x = (value) => LEFT + ((value - values[0]) / (values.at(-1) - values[0] || 1)) * (right - LEFT - 12);
  const y = (score) => BOTTOM - ((score - low) / (high - low || 1)) * (BOTTOM - TOP);
  const line = (scores, name) =>
    svg("polyline", { class: name, points: scores.map((score, i) => `${x(values[i]).toFixed(1)},${y(score).toFixed(1)}`).join(" ") });
  return svg(
    "svg",
    { viewBox: `0 0 ${right} ${HEIGHT}`, width: right, height: HEIGHT, class: "rates curves", role: "img", "aria-label": label },
    ticks(low, high, 4).map((tick) => [
      svg("line", { class: "grid", x1: LEFT, x2: right - 12, y1: y(tick), y2: y(tick) }),
      svg("text", { x: LEFT - 6, y: y(tick) + 4, "text-anchor": "end" }, number(tick, 3)),
    ]),
    ticks(values[0], values.at(-1), right / 110).map((tick) => svg("text", { x: x(tick), y: HEIGHT - 12, "text-anchor": "middle" }, number(tick, 3))),
    curves.map((scores) => line(scores, "one")),
    threshold !== null && svg("line", { class: "diagonal", x1: LEFT, x2: right - 12, y1: y(threshold), y2: y(threshold) }),
    line(mean, "mean"),
  );
}
