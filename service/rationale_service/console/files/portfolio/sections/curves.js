// What the score does along a feature, row by row, the others as they are (ICE), and on average (PDP).

import { fill, h, visible } from "../../dom.js";
import { Scores, grid } from "../../explain/along.js";
import { formatted } from "../../format.js";
import { drawCurves } from "../../pictures/curves.js";
import { fields } from "../../rows.js";
import { element as explainedOf, ruleOf, targets } from "../../score.js";
import { changed, labelOf, titleOf } from "../../values.js";
import { slices } from "../outcomes.js";
import { quantiles } from "../statistics.js";
import { instance } from "../words.js";

const MOST_ROWS = 40;
const MOST_VALUES = 25;

export function makeCurves(portfolio, { signal }) {
  const model = portfolio.features;
  const able = fields(model).filter((field) => isAble(field, portfolio));
  const along = h("select", { id: "curves-along" }, able.map((field, i) => h("option", { value: i }, titleOf(field))));
  const go = h("button", { type: "button", onclick: () => draw() }, "Draw the curves");
  const frame = h("div", { class: "frame", id: "curves-drawn" });
  const note = h("p", { class: "quiet", role: "status" }, "Asks the model about 40 rows, the picked ones if there are any, at 25 values each.");

  async function draw() {
    go.disabled = true;
    try {
      await drawn(able[Number(along.value)]);
    } catch (error) {
      if (error.name !== "AbortError") note.textContent = visible(`${error.title ?? "Nothing is drawn"}: ${error.detail ?? error.message}`);
    } finally {
      go.disabled = false;
    }
  }

  async function drawn(field) {
    const of = portfolio.picked.length > 1 ? portfolio.picked : Array.from({ length: portfolio.n }, (_, i) => i);
    const places = thinned(of, MOST_ROWS);
    const values = valuesAlong(field, portfolio.columns.get(field.name), portfolio.rows.subarray(0, portfolio.n));
    const words = isNumber(field) ? null : values.map((value) => labelOf(field, value));
    const rule = ruleOf(model, null, null);
    const target = Array.isArray(model.targets) ? model.targets[portfolio.target] : "predicted";
    const score = (prediction, explanation) => {
      const explained = explanation && targets(explanation)[portfolio.target];
      return rule ? rule.score(prediction, explained) : (explainedOf(model, prediction, target) ?? explained?.explained_value);
    };
    const rows = places.flatMap((place) => values.map((value) => changed(instance(portfolio, place), field.name, value)));
    const scores = await new Scores(model, model.explainer, score).of(rows, signal);
    const curves = places.map((_, i) => scores.slice(i * values.length, (i + 1) * values.length));
    const mean = meanOf(curves);
    const name = titleOf(field);
    const line = (value, i) => h("tr", {}, h("th", { scope: "row" }, words?.[i] ?? formatted(value)), h("td", { class: "number" }, portfolio.writeScore.value(mean[i], 4)));
    fill(
      frame,
      drawCurves({ width: frame.clientWidth, values: words ? [...values.keys()] : values, words, curves, mean, threshold: rule?.threshold ?? null, tick: portfolio.writeScore.tick, label: `The score of ${places.length} rows along ${name}, and its mean` }),
      h("details", {}, h("summary", {}, "The mean in numbers"),
        h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, name), h("th", { scope: "col", class: "number" }, "Mean score"))), h("tbody", {}, values.map(line)))),
    ); // prettier-ignore
    note.textContent = `A line for each of ${places.length} rows, the other features as they are; the ${words ? "dots are" : "thick one is"} their mean. If lines are not parallel, the feature interacts with others.`;
  }

  const element = h(
    "section",
    { class: "panel", "aria-labelledby": "curves" },
    h("h2", { id: "curves" }, "Curves of rows"),
    able.length
      ? [h("div", { class: "row" }, h("label", { for: "curves-along" }, "Along"), along, go), frame, note]
      : h("p", { class: "quiet" }, "The model takes no feature along which a curve could be drawn."),
  );
  return { element, draw: () => undefined };
}

const isNumber = (field) => field.kind === "number" && !field.choices;

/** Whether the file has values of a kind that the feature takes. */
function isAble(field, portfolio) {
  const column = portfolio.columns.get(field.name);
  return column !== undefined && (column.kind === "number" || field.kind !== "number");
}

/** The values that rows are given: along a number's range, else the words of the references and the most frequent ones of the file. */
export function valuesAlong(field, column, rows) {
  if (isNumber(field)) {
    const ends = quantiles(column.values, rows, 51);
    return thinned(grid(field, [ends[1], ends[49]], null), MOST_VALUES);
  }
  const known = grid(field, null, null).filter((value) => value !== null);
  if (field.kind !== "text") return known.slice(0, MOST_VALUES);
  const own = slices(column, rows, { most: MOST_VALUES }).map(([word]) => word).filter((word) => column.words?.includes(word));
  return [...new Set([...own, ...known])].slice(0, MOST_VALUES);
}

/** At most so many of a list, at even steps, both ends among them. */
export function thinned(list, most) {
  if (list.length <= most) return [...list];
  return Array.from({ length: most }, (_, i) => list[Math.round((i * (list.length - 1)) / (most - 1))]);
}

/** The mean of curves at each of their values. */
export const meanOf = (curves) => curves[0].map((_, j) => curves.reduce((sum, curve) => sum + curve[j], 0) / curves.length);
