// The score along each slider of a form, and where it turns.

import { curve, draw } from "../pictures/curve.js";
import { labelOf } from "../values.js";
import { outline } from "./along.js";

const drawings = new WeakMap(); // by slider

/** Draw what `along` found; without it, take away what is drawn. `rule` is what decides, or null. */
export function sketch(form, found, rule) {
  const result = found?.result ?? new Map();
  const all = [...result.values()].flatMap(({ points }) => points.map(({ score }) => score));
  if (rule) all.push(rule.threshold);
  const scores = [all.reduce((a, b) => Math.min(a, b), Infinity), all.reduce((a, b) => Math.max(a, b), -Infinity)];
  for (const field of form.fields) {
    const { slider } = form.parts.get(field.name);
    const { points = [], flips = [] } = result.get(field.name) ?? {};
    const span = form.spans.get(field.name);
    const edge = span ? (span[1] - span[0]) / 100 : 0; // by which ends of the curve may be rounded
    const isInside = (value) => span[0] - edge <= value && value <= span[1] + edge;
    if (slider && span) {
      const threshold = found ? (rule?.threshold ?? null) : null;
      const drawn = outline(field, points, span).filter(({ value }) => isInside(value));
      draw(above(slider), { points: drawn, span, scores, threshold, flips: flips.map((one) => one.value).filter(isInside) });
    }
    const word = (flip) => `${rule.judge(flip.score)} at ${labelOf(field, flip.value)}`;
    form.note(field, rule && flips.length ? `turns to ${flips.map(word).join(", ")}` : "");
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
