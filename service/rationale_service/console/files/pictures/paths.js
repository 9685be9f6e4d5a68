// The path of each row from the base value, below, to what is explained, above: a decision plot.

import { svg, visible } from "../dom.js";
import { elided, tickText, ticks } from "./canvas.js";

const LINE = 24;
const [TOP, AXIS, RIGHT] = [10, 30, 14];
const NAMES = 0.42; // of the width, at most
const LETTER = 8; // pixels of a wide one

/**
 * `width`: of its place; `names`: of features, the first one above; `paths` [[value before any, …, value after the first]]
 * of each row, from below; `threshold` null without one on this scale; `tick`: writes a number of the axis.
 */
export function drawPaths({ width, names, paths, threshold, tick: up = tickText, label }) {
  const left = Math.round(Math.min(Math.max(...names.map((name) => name.length)) * LETTER + 12, width * NAMES));
  const bottom = TOP + names.length * LINE;
  const height = bottom + AXIS;
  const all = [...paths.flat(), ...(threshold === null ? [] : [threshold])];
  const [low, high] = [Math.min(...all), Math.max(...all)];
  const x = (value) => left + 8 + ((value - low) / (high - low || 1)) * (width - left - 8 - RIGHT);
  const y = (step) => bottom - step * LINE;
  const room = Math.max(...[low, high].map((end) => up(end).length)) * LETTER + 16; // of a number below
  const fits = (text) => text.length * LETTER <= left - 12;
  const path = (values) =>
    svg("polyline", {
      class: values.at(-1) > values[0] ? "raises" : "lowers",
      points: values.map((value, step) => `${x(value).toFixed(1)},${y(step)}`).join(" "),
    });
  return svg(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, width, height, class: "rates paths", role: "img", "aria-label": label },
    names.map((name, j) => [
      svg("line", { class: "grid", x1: left, x2: width - RIGHT, y1: TOP + (j + 1) * LINE, y2: TOP + (j + 1) * LINE }),
      svg("text", { x: left - 6, y: TOP + (j + 0.5) * LINE + 4, "text-anchor": "end" }, svg("title", {}, name), elided(visible(name), fits)),
    ]),
    ticks(low, high, (width - left) / room).map((tick) => svg("text", { x: x(tick), y: height - 8, "text-anchor": "middle" }, up(tick))),
    paths.map(path),
    threshold !== null && svg("line", { class: "diagonal", x1: x(threshold), x2: x(threshold), y1: TOP, y2: bottom }),
  );
}
