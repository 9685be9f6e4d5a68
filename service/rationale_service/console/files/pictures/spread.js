// How a feature is spread over references, with the row in it: numbers as a histogram, words as shares.

import { h, svg } from "../dom.js";
import { formatted, percentInTable } from "../format.js";

const WIDTH = 280;
const HEIGHT = 96;
const BASE = 76;
const EDGE = 8;
const BINS = 28;
const MOST_WORDS = 8;

/** spreads: one or two of the same feature ({quantiles} or {categories}); value: the row's, or undefined. */
export function drawSpread(name, spreads, value, write = formatted) {
  const known = spreads.filter((each) => each !== undefined);
  if (known.some((each) => each.quantiles?.length)) return drawNumbers(name, spreads, value, write);
  if (known.some((each) => each.categories?.length)) return drawWords(spreads, value);
  return h("p", { class: "quiet" }, "No values are known.");
}

function drawNumbers(name, spreads, value, write) {
  const there = spreads.filter((each) => each?.quantiles?.length);
  const hasRow = typeof value === "number";
  const ends = there.flatMap((each) => [each.quantiles[0], each.quantiles.at(-1)]);
  const low = Math.min(...ends, ...(hasRow ? [value] : []));
  const high = Math.max(...ends, ...(hasRow ? [value] : []));
  const isWhole = there.every((each) => each.whole) && high - low < BINS;
  const [from, to] = isWhole ? [low - 0.5, high + 0.5] : [low, high > low ? high : low + 1];
  const count = isWhole ? Math.round(to - from) : BINS;
  const x = (at) => EDGE + ((at - from) / (to - from)) * (WIDTH - 2 * EDGE);
  const shares = spreads.map((each) => (each?.quantiles?.length ? histogram(each.quantiles, from, to, count) : null));
  const most = Math.max(...shares.flatMap((each) => each ?? [0])) || 1;
  const width = (WIDTH - 2 * EDGE) / count;
  const bars = shares.map((each, i) =>
    each?.map((share, k) => {
      const height = (share / most) * (BASE - 16);
      return share > 0 && svg("rect", { class: i ? "second" : "first", x: x(from + (k / count) * (to - from)) + 0.5, y: BASE - height, width: Math.max(width - 1, 1), height });
    }),
  );
  const isRight = x(value) > WIDTH / 2;
  const words = there.map((each) => `median ${write(each.quantiles[10])}, from ${write(each.quantiles[0])} to ${write(each.quantiles[20])}`);
  const label = `${name}: ${words.join("; the second set: ")}${hasRow ? `; the row has ${write(value)}` : ""}`;
  return svg(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "spread", role: "img", "aria-label": label },
    bars,
    svg("line", { class: "grid", x1: EDGE, x2: WIDTH - EDGE, y1: BASE, y2: BASE }),
    svg("text", { x: EDGE, y: HEIGHT - 4 }, write(low)),
    svg("text", { x: WIDTH - EDGE, y: HEIGHT - 4, "text-anchor": "end" }, write(high)),
    hasRow && [
      svg("line", { class: "now", x1: x(value), x2: x(value), y1: 2, y2: BASE + 3 }),
      svg("text", { class: "now", x: x(value) + (isRight ? -5 : 5), y: 10, "text-anchor": isRight ? "end" : "start" }, write(value)),
    ],
  );
}

/** Return the share of each bin, by a distribution function through the quantiles. */
export function histogram(quantiles, from, to, count) {
  const last = quantiles.length - 1;
  const below = (value) => {
    if (value < quantiles[0]) return 0;
    if (value >= quantiles[last]) return 1;
    let i = 0;
    while (quantiles[i + 1] <= value) i++;
    return (i + (value - quantiles[i]) / (quantiles[i + 1] - quantiles[i])) / last;
  };
  let before = 0;
  return Array.from({ length: count }, (_, k) => {
    const reached = k === count - 1 ? 1 : below(from + ((k + 1) / count) * (to - from));
    const share = reached - before;
    before = reached;
    return share;
  });
}

function drawWords(spreads, value) {
  const shares = spreads.map((each) => new Map((each?.categories ?? []).map((one) => [one.value, one.share])));
  const words = [...new Set(shares.flatMap((each) => [...each.keys()]))];
  const size = (word) => Math.max(...shares.map((each) => each.get(word) ?? 0));
  words.sort((a, b) => size(b) - size(a));
  const shown = words.slice(0, MOST_WORDS);
  if (typeof value === "string" && !shown.includes(value)) shown.push(value);
  return h(
    "ul",
    { class: "shares" },
    shown.map((word) =>
      h(
        "li",
        { class: word === value ? "now" : null },
        h("span", { class: "name" }, formatted(word), word === value && h("span", { class: "unseen" }, " (the row's)")),
        h("span", { class: "track" }, shares.map((each, i) => spreads[i] && h("span", { class: i ? "bar second" : "bar", style: { width: `${(each.get(word) ?? 0) * 100}%` } }))),
        h("span", { class: "number" }, shares.filter((_, i) => spreads[i]).map((each) => percentInTable(each.get(word) ?? 0)).join(" / ")),
      ),
    ),
  );
}
