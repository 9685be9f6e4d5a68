// A square of shares by shares, with its diagonal: a line, or points with their intervals.

import { svg } from "../dom.js";

const SIDE = 300;
const [LEFT, RIGHT, TOP, BOTTOM] = [58, 290, 10, 256];

/** `line` [[x, y], …]; `points` [{x, y, low, high}]; `mark` [x, y] of now, or null; all of them 0 to 1. */
export function drawSquare({ label, across, up, line = [], points = [], mark = null }) {
  const x = (share) => LEFT + share * (RIGHT - LEFT);
  const y = (share) => BOTTOM - share * (BOTTOM - TOP);
  const text = (at, words, more) => svg("text", { x: at[0], y: at[1], "text-anchor": "middle", ...more }, words);
  return svg(
    "svg",
    { viewBox: `0 0 ${SIDE} ${SIDE}`, width: SIDE, height: SIDE, class: "rates square", role: "img", "aria-label": label },
    [0, 0.5, 1].map((share) => [
      svg("line", { class: "grid", x1: LEFT, x2: RIGHT, y1: y(share), y2: y(share) }),
      svg("line", { class: "grid", x1: x(share), x2: x(share), y1: TOP, y2: BOTTOM }),
      text([LEFT - 6, y(share) + 4], `${share * 100}%`, { "text-anchor": "end" }),
      text([x(share), BOTTOM + 16], `${share * 100}%`, share === 1 ? { "text-anchor": "end" } : {}),
    ]),
    svg("line", { class: "diagonal", x1: x(0), y1: y(0), x2: x(1), y2: y(1) }),
    line.length > 0 && svg("polyline", { class: "lowers", points: line.map(([a, b]) => `${x(a).toFixed(1)},${y(b).toFixed(1)}`).join(" ") }),
    points.map((one) => [
      svg("line", { class: "reach", x1: x(one.x), x2: x(one.x), y1: y(one.low), y2: y(one.high) }),
      svg("circle", { class: "point", cx: x(one.x), cy: y(one.y), r: 4 }),
    ]),
    mark && svg("circle", { class: "mark", cx: x(mark[0]), cy: y(mark[1]), r: 6 }),
    text([(LEFT + RIGHT) / 2, SIDE - 6], across),
    text([0, 0], up, { transform: `translate(12 ${(TOP + BOTTOM) / 2}) rotate(-90)` }),
  );
}
