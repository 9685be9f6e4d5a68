// A mean and its interval on a line through zero.

import { svg } from "../dom.js";
import { signed } from "../portfolio/words.js";

const WIDTH = 220;
const HEIGHT = 20;

/** Draw {mean, low, high} on a scale from −most to most. */
export function drawInterval({ mean, low, high }, most) {
  const x = (value) => ((value / (most || 1) + 1) / 2) * (WIDTH - 8) + 4;
  const middle = HEIGHT / 2;
  const side = mean > 0 ? "raises" : "lowers";
  return svg(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "interval", role: "img", "aria-label": `${signed(low)} to ${signed(high)}` },
    svg("line", { class: "zero", x1: x(0), x2: x(0), y1: 0, y2: HEIGHT }),
    svg("line", { class: side, x1: x(low), x2: x(high), y1: middle, y2: middle }),
    svg("circle", { class: side, cx: x(mean), cy: middle, r: 4 }),
  );
}
