// The score along each slider of a form, and where the decision turns.

import { curve, draw } from "../pictures/curve.js";
import { labelOf } from "../values.js";
import { outline } from "./along.js";

const drawings = new WeakMap(); // by slider

/** Draw the `curves` of `along`, the threshold of a `rule` and flip points of the API; without curves take away what is drawn. */
export function sketch(form, { curves = new Map(), rule = null, flips = [] } = {}) {
  const all = [...curves.values()].flatMap((points) => points.map(({ score }) => score));
  if (rule) all.push(rule.threshold);
  const scores = [all.reduce((a, b) => Math.min(a, b), Infinity), all.reduce((a, b) => Math.max(a, b), -Infinity)];
  for (const field of form.fields) {
    const { slider } = form.parts.get(field.name);
    const flip = flips.find(({ feature }) => feature === field.name);
    const span = form.spans.get(field.name);
    const edge = span ? (span[1] - span[0]) / 100 : 0; // by which ends of the curve may be rounded
    const isInside = (value) => span[0] - edge <= value && value <= span[1] + edge;
    if (slider && span) {
      const drawn = outline(field, curves.get(field.name) ?? [], span).filter(({ value }) => isInside(value));
      draw(above(slider), { points: drawn, span, scores, threshold: rule?.threshold ?? null, flip: flip && isInside(flip.value) ? flip.value : null });
    }
    form.note(field, flip ? `turns to ${flip.to} at ${labelOf(field, flip.value)}` : "");
  }
}

/** The drawing above a slider. */
function above(slider) {
  if (!drawings.has(slider)) {
    drawings.set(slider, curve());
    slider.before(drawings.get(slider));
  }
  return drawings.get(slider);
}
