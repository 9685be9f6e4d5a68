// Rates along a threshold: approval and default of all rows, with the threshold of now.

import { svg } from "../dom.js";
import { tickText, ticks } from "./canvas.js";

const [LEAST, MOST] = [240, 1100];
const HEIGHT = 216;
const LEFT = 44;
const BOTTOM = 188;
const TOP = 28; // below its legend

/** width: of its place; thresholds: ascending; rates: what `Rates.at` answers for each; tick: writes a threshold. */
export function drawRates({ width, thresholds, rates, now, tick: up = tickText }) {
  const right = Math.min(Math.max(width, LEAST), MOST);
  const [low, high] = [thresholds[0], thresholds.at(-1)];
  const x = (value) => LEFT + ((value - low) / (high - low || 1)) * (right - LEFT - 12);
  const y = (share) => BOTTOM - share * (BOTTOM - TOP);
  const path = (of) =>
    rates.map((each, i) => [thresholds[i], of(each)]).filter(([, share]) => !Number.isNaN(share))
      .map(([value, share]) => `${x(value).toFixed(1)},${y(share).toFixed(1)}`).join(" "); // prettier-ignore
  const text = (at, words, anchor = "middle") => svg("text", { x: at[0], y: at[1], "text-anchor": anchor }, words);
  return svg(
    "svg",
    { viewBox: `0 0 ${right} ${HEIGHT}`, width: right, height: HEIGHT, class: "rates", role: "img", "aria-label": "Rate of approval, and of bad outcomes among the approved, along the threshold" },
    [0, 0.5, 1].map((share) => [
      svg("line", { class: "grid", x1: LEFT, x2: right - 12, y1: y(share), y2: y(share) }),
      text([LEFT - 6, y(share) + 4], `${share * 100}%`, "end"),
    ]),
    ticks(low, high, right / 100).map((tick) => text([x(tick), HEIGHT - 10], up(tick))),
    svg("polyline", { class: "lowers", points: path((each) => each.approval.share) }),
    svg("polyline", { class: "raises", points: path((each) => each.defaulted.share) }),
    svg("line", { class: "now", x1: x(now), x2: x(now), y1: TOP, y2: BOTTOM }),
    svg("text", { class: "lowers", x: LEFT + 8, y: TOP - 14 }, "approved"),
    svg("text", { class: "raises", x: LEFT + 88, y: TOP - 14 }, "bad among approved"),
  );
}
