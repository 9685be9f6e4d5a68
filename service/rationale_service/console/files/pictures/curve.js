// The score along one feature: a small line above its slider, with the threshold and the flip point.

import { fill, svg } from "../dom.js";

const WIDTH = 1000;
const HEIGHT = 100;

/** An empty drawing for `draw`. */
export const curve = () =>
  svg("svg", { class: "curve", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" });

/**
 * `points` [{value, score}] sorted by value; `span` [least, most] of the slider, `scores` [least, most] of all curves;
 * `threshold` and `flip` (a value) are null where there is none.
 */
export function draw(element, { points, span, scores, threshold = null, flip = null }) {
  const x = (value) => (span[1] > span[0] ? ((value - span[0]) / (span[1] - span[0])) * WIDTH : WIDTH / 2);
  const y = (score) => 92 - ((score - scores[0]) / (scores[1] - scores[0] || 1)) * 84;
  const line = points.map(({ value, score }) => `${x(value).toFixed(1)},${y(score).toFixed(1)}`).join(" ");
  fill(
    element,
    threshold !== null && svg("line", { class: "threshold", x1: 0, x2: WIDTH, y1: y(threshold), y2: y(threshold) }),
    points.length && svg("polyline", { class: "score", points: line }),
    flip !== null && svg("line", { class: "flip", x1: x(flip), x2: x(flip), y1: 0, y2: HEIGHT }),
  );
}
