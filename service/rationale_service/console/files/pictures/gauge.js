// A score on its scale, held against the threshold.

import { svg } from "../dom.js";

const [WIDTH, HEIGHT, EDGE] = [420, 74, 14];
const [TOP, THICK] = [30, 14];

/** `rule` has threshold, adverse and refer, as a model's `decision`; `figure(score)` writes a score. */
export function gauge(score, rule, outcome, figure) {
  const ends = scale(score, rule);
  const x = (value) => EDGE + ((value - ends[0]) / (ends[1] - ends[0])) * (WIDTH - 2 * EDGE);
  const at = Math.min(Math.max(x(rule.threshold), EDGE), WIDTH - EDGE);
  const isAbove = rule.adverse === "above";
  const [good, bad] = isAbove ? [[EDGE, at], [at, WIDTH - EDGE]] : [[at, WIDTH - EDGE], [EDGE, at]];
  const band = ([from, to], name) => svg("rect", { class: name, x: from, y: TOP, width: Math.max(0, to - from), height: THICK });
  const label = (value, y, text, name) =>
    svg("text", { class: name, x: x(value), y, "text-anchor": anchor(x(value)) }, text);
  const description = `Score ${figure(score)}, threshold ${figure(rule.threshold)}: ${outcome}. The model declines ${rule.adverse} the threshold.`;
  return svg(
    "svg",
    { class: "gauge", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": description },
    band(good, "good"),
    band(bad, "bad"),
    rule.refer && band([Math.max(EDGE, x(rule.refer[0])), Math.min(WIDTH - EDGE, x(rule.refer[1]))], "refer"),
    svg("line", { class: "threshold", x1: at, x2: at, y1: TOP - 6, y2: TOP + THICK + 6 }),
    label(rule.threshold, HEIGHT - 8, `threshold ${figure(rule.threshold)}`, "quiet"),
    svg("circle", { class: "score", cx: x(score), cy: TOP + THICK / 2, r: 8 }),
    label(score, TOP - 12, `score ${figure(score)}`, "score-text"),
  );
}

/** 0 to 1 where all lies there, else as far as the score and the threshold reach. */
function scale(score, rule) {
  const all = [score, rule.threshold, ...(rule.refer ?? [])];
  const [low, high] = [Math.min(...all), Math.max(...all)];
  if (low >= 0 && high <= 1) return [0, 1];
  const width = high - low || Math.abs(high) || 1;
  return [low - width / 4, high + width / 4];
}

const anchor = (x) => (x < WIDTH / 4 ? "start" : x > (3 * WIDTH) / 4 ? "end" : "middle");
