// Attributions as bars in a table: a waterfall from the base value to the score, or bars from zero.
// The table is the picture's own text: whoever cannot see the bars reads the same rows.

import { h, svg } from "../dom.js";

const WIDTH = 1000;
const HEIGHT = 20;
const MOST = 20;

/**
 * `items`: [{name, shown, amount, members}], of which `members` is a group's, in place of `shown`; `write`: `writers` of the numbers; `base` and `value` null where the method has none; `kind` "waterfall" or "bars";
 * `threshold` null or where a line stands; `scale` from `scaleOf`, kept by the caller so that bars do not jump.
 */
export function bars({ items, write, base = null, value = null, kind = "waterfall", threshold = null, scale, caption, startName = "base value", valueName = "score" }) {
  const rows = shortened(items);
  const falls = kind === "waterfall" && base !== null;
  const x = (at) => ((at - scale.least) / (scale.most - scale.least)) * WIDTH;
  let reached = falls ? base : 0;
  const marks = falls ? [[startName, base, "start"], ["threshold", threshold, "threshold"], [valueName, value, "reached"]] : [["", 0, "start"]];
  const line = (at, name) => at !== null && svg("line", { class: name, x1: x(at), x2: x(at), y1: 0, y2: HEIGHT });
  const body = rows.map((item) => {
    const from = falls ? reached : 0;
    const to = from + item.amount;
    if (falls) reached = to;
    return h(
      "tr",
      {},
      h("th", { scope: "row" }, item.name, (item.members ?? item.shown) !== undefined && h("small", {}, item.members ?? item.shown)),
      h("td", { class: "picture" }, drawing(line(falls ? base : 0, "start"), falls && line(threshold, "threshold"), bar(x(from), x(to), item.amount))),
      h("td", { class: "number" }, write.effect(item.amount)),
    );
  });
  return h(
    "table",
    { class: "bars" },
    h("caption", { class: "unseen" }, caption),
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Feature"), h("th", { scope: "col", class: "picture" }, h("span", { class: "unseen" }, "Drawing"), axis(marks, scale, write)), h("th", { scope: "col", class: "number" }, "Effect", write.unit && h("small", {}, write.unit)))),
    h(
      "tbody",
      {},
      falls && total(startName, write.value(base), base, x, line(threshold, "threshold")),
      body,
      value !== null && falls && total(valueName, write.value(value), value, x, line(threshold, "threshold"), line(base, "start")),
    ),
  );
}

/** The axis: what stands where, each on a line of its own, so that none hides another. */
function axis(marks, { least, most }, write) {
  const label = ([name, at, kind]) => {
    const place = `${Math.min(Math.max((at - least) / (most - least), 0), 1) * 100}%`;
    return h("span", { class: kind, style: { left: place, transform: `translateX(-${place})` } }, `${name} ${write.value(at)}`.trim());
  };
  const there = marks.filter(([, at]) => at !== null);
  const lines = there.sort(([, a], [, b]) => a - b).map((mark) => h("span", { class: "line" }, label(mark)));
  return h("span", { class: "axis", "aria-hidden": "true" }, lines);
}

function total(name, text, at, x, ...lines) {
  return h(
    "tr",
    { class: "total" },
    h("th", { scope: "row" }, name),
    h("td", { class: "picture" }, drawing(lines, svg("line", { class: "reached", x1: x(at), x2: x(at), y1: 0, y2: HEIGHT }))),
    h("td", { class: "number" }, text),
  );
}

function drawing(...content) {
  return svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true", class: "bar" }, content);
}

function bar(from, to, amount) {
  const width = Math.max(Math.abs(to - from), amount ? 2 : 0);
  return svg("rect", { class: amount > 0 ? "raises" : "lowers", x: Math.min(from, to), width, y: 3, height: HEIGHT - 6 });
}

/** The items that are shown: of many the largest, and the others as one. */
export function shortened(items) {
  const sorted = items.toSorted((a, b) => Math.abs(b.amount) - Math.abs(a.amount));
  if (sorted.length <= MOST) return sorted;
  const others = sorted.slice(MOST - 1);
  const amount = others.reduce((sum, one) => sum + one.amount, 0);
  return [...sorted.slice(0, MOST - 1), { name: `${others.length} others together`, amount }];
}

/** A scale that holds all of these; the former one where it still does and is not much too wide. */
export function scaleOf(explanations, kind, former = null, threshold = null) {
  let least = Infinity;
  let most = -Infinity;
  const take = (...values) => {
    for (const one of values) {
      least = Math.min(least, one);
      most = Math.max(most, one);
    }
  };
  for (const { items, base } of explanations) {
    let at = kind === "waterfall" && base !== null ? base : 0;
    take(at);
    for (const { amount } of shortened(items)) {
      take(at + amount);
      if (kind === "waterfall" && base !== null) at += amount;
    }
  }
  if (threshold !== null && kind === "waterfall") take(threshold);
  const room = (most - least || Math.abs(most) || 1) * 0.08;
  const fits = former && former.kind === kind && former.least <= least && former.most >= most;
  if (fits && most - least > (former.most - former.least) / 3) return former;
  return { kind, least: least - room, most: most + room };
}
