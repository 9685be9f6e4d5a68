// A heatmap of rows: a column for each row, a line for each feature, and above them where each row ends.

import { svg, visible } from "../dom.js";
import { elided, tickText } from "./canvas.js";

const LINE = 20;
const STRIP = 44; // of the line above
const PALEST = 0.04; // what is paler is not drawn
const NAMES = 0.42; // of the width, at most
const LETTER = 8; // pixels of a wide one

/**
 * `width`: of its place; `features` [{name, values: [one for each row]}]; `ends` [explained value, …]; `most`: what has the
 * full colour; `tick`: writes an end. Returns {element, at(x) → the row at a place across}.
 */
export function drawRowMap({ width, features, ends, most, tick = tickText, label }) {
  const [low, high] = [Math.min(...ends), Math.max(...ends)];
  const needed = (texts) => Math.max(...texts.map((text) => text.length)) * LETTER + 12;
  const numbers = needed([low, high].map((end) => tick(end)));
  const left = Math.round(Math.max(numbers, Math.min(needed(features.map(({ name }) => name)), width * NAMES)));
  const side = (width - left) / ends.length;
  const height = STRIP + features.length * LINE;
  const y = (end) => STRIP - 8 - ((end - low) / (high - low || 1)) * (STRIP - 16);
  const cells = features.flatMap(({ values }, j) =>
    values.map((value, i) => {
      const share = Math.abs(value) / (most || 1);
      if (share < PALEST) return null;
      const place = { x: (left + i * side).toFixed(2), y: STRIP + j * LINE + 1, width: (side + 0.3).toFixed(2), height: LINE - 2 };
      return svg("rect", { class: value > 0 ? "raises" : "lowers", opacity: Math.min(share, 1).toFixed(2), ...place });
    }),
  );
  const fits = (text) => text.length * LETTER <= left - 12;
  const named = (text, at) => svg("text", { x: left - 6, y: at, "text-anchor": "end" }, svg("title", {}, text), elided(visible(text), fits));
  const element = svg(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, width, height, class: "rates rowmap", role: "img", "aria-label": label },
    svg("text", { x: left - 6, y: y(high) + 4, "text-anchor": "end" }, tick(high)),
    svg("text", { x: left - 6, y: y(low) + 4, "text-anchor": "end" }, tick(low)),
    svg("polyline", { class: "ends", points: ends.map((end, i) => `${(left + (i + 0.5) * side).toFixed(1)},${y(end).toFixed(1)}`).join(" ") }),
    features.map(({ name }, j) => named(name, STRIP + (j + 0.5) * LINE + 4)),
    cells,
  );
  return { element, at: (x) => Math.min(Math.max(Math.floor((x - left) / side), 0), ends.length - 1) };
}
