// With outcomes: what a threshold would approve and cost, group by group, and where the model errs.

import { fill, h } from "../../dom.js";
import { numberEntry } from "../../entry.js";
import { number, percentInTable, writers } from "../../format.js";
import { outcomeOf } from "../../outcome.js";
import { redrawn } from "../../pictures/canvas.js";
import { drawRates } from "../../pictures/rates.js";
import { frame } from "../run.js";
import { MOST_KINDS, Rates, errors, isId, kindsOf, outcomeKinds, outcomesOf, slices } from "../outcomes.js";
import { figure } from "../words.js";
import { makeQuality } from "./quality.js";

const STEPS = 1000; // of the slider
const SHOWN = 10; // slices
const LIKELY = /default|outcome|target|label|bad|^y$/i;

export function makeOutcomes(portfolio, { signal }) {
  const rows = portfolio.rows;
  const able = portfolio.others().filter((column) => outcomeKinds(column, rows) !== null);
  const outcome = h("select", { id: "outcome", onchange: () => choose() });
  const bad = h("select", { id: "bad", onchange: () => draw() });
  const group = h("select", { id: "group", onchange: () => draw() });
  const adverse = h("select", { id: "adverse", "aria-label": "Declined, seen from the threshold", onchange: () => rates() });
  const slider = h("input", { type: "range", id: "threshold", min: 0, max: STEPS, step: 1, oninput: () => moved() });
  const shown = h("output", { for: "threshold", id: "threshold-value" });
  const cost = (id, value) => numberEntry({ id, value, changed: () => rates() });
  const costBad = cost("cost-bad", "5");
  const costGood = cost("cost-good", "1");
  const cheapest = h("p", { class: "quiet" });
  const picture = h("div", { class: "frame" });
  const table = h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Rates by group" });
  const worst = h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Where the model errs" });
  const quality = makeQuality();
  let groups = [];
  let turn = null;
  let range = [0, 1];
  let threshold = 0; // that of the profile need not lie on a step of the slider

  outcome.append(...able.map((column, i) => h("option", { value: i }, column.name)));
  const likely = able.findIndex((column) => LIKELY.test(column.name));
  outcome.value = String(Math.max(likely, 0));
  const others = portfolio.others().filter((column) => !isId(column, rows));
  const isGroup = (column) => (column.kind === "text" ? !isId(column, rows) : kindsOf(column, rows) <= MOST_KINDS);
  const segments = [...others, ...portfolio.values.filter((column) => column !== null && isGroup(column))];
  group.append(h("option", { value: "" }, "none"), ...segments.map((column, i) => h("option", { value: i }, portfolio.titleOf(column.name))));
  adverse.append(h("option", { value: "above" }, "above"), h("option", { value: "below" }, "below"));
  const profile = portfolio.features.decision ?? null;
  adverse.value = profile?.adverse ?? "above";
  const band = h("p", { class: "quiet" });
  const asProfile = h("button", { type: "button", onclick: () => (adverse.value = profile.adverse, move(profile.threshold)) }, "As the profile");

  function choose() {
    const kinds = outcomeKinds(able[Number(outcome.value)], rows);
    fill(bad, kinds.map((kind) => h("option", { value: kind }, kind)));
    bad.selectedIndex = 1;
    return draw();
  }

  function draw() {
    if (!able.length || !portfolio.isWhole) return undefined;
    if (bad.options.length === 0) return choose();
    const column = able[Number(outcome.value)];
    const outcomes = outcomesOf(column, rows, bad.value);
    const { scores } = portfolio;
    let [low, high] = [Infinity, -Infinity];
    for (const score of scores) {
      if (score < low) low = score;
      if (score > high) high = score;
    }
    const isNew = range[0] !== low || range[1] !== high;
    range = [low, high];
    if (isNew) {
      threshold = profile?.threshold ?? (low + high) / 2;
      slider.value = String(toStep(threshold));
    }
    const all = Array.from(rows.keys());
    const by = group.value === "" ? [] : slices(segments[Number(group.value)], rows, { called: (name, text) => portfolio.valueOf(name, text) });
    groups = [["all rows", all], ...by].map(([label, members]) => ({ label, rates: new Rates(scores, outcomes, members) }));
    rates();
    return showErrors(column, outcomes);
  }

  const score = (value) => portfolio.writeScore.value(value, 4);
  const toStep = (value) => Math.round(((value - range[0]) / (range[1] - range[0] || 1)) * STEPS);
  const toValue = (step) => range[0] + (step / STEPS) * (range[1] - range[0]);

  function moved() {
    threshold = toValue(Number(slider.value));
    rates();
  }

  function move(to) {
    threshold = to;
    slider.value = String(toStep(to));
    rates();
  }

  /** The rule at a threshold: the band in which a person decides keeps its place around it. */
  function ruleAt(value) {
    const refer = profile?.refer?.map((end) => (value === profile.threshold ? end : value + end - profile.threshold));
    return { threshold: value, adverse: adverse.value, refer: refer ?? null };
  }

  function rates() {
    if (!groups.length) return;
    const rule = ruleAt(threshold);
    band.textContent =
      `A score of exactly ${score(threshold)} is ${outcomeOf(rule, threshold) === "refer" ? "referred" : "approved"}. ` +
      (rule.refer ? `From ${score(rule.refer[0])} to ${score(rule.refer[1])} a person decides: that costs nothing here. ` : "") +
      (profile ? "Rows are decided by their scores alone, without the profile’s knock-outs." : "");
    shown.textContent = score(threshold);
    slider.setAttribute("aria-valuetext", score(threshold));
    const costs = { bad: costBad.read() ?? NaN, good: costGood.read() ?? NaN };
    const interval = (each) => [percentInTable(each.share), h("small", {}, ` ${percentInTable(each.low)} to ${percentInTable(each.high)}`)];
    fill(
      table,
      h(
        "table",
        {},
        h("thead", {}, h("tr", {}, ["Group", "Rows", "Approved", ...(rule.refer ? ["Referred"] : []), "Declined", "Rate of approval", "Bad among approved", "Cost per row"].map((name, i) => h("th", { scope: "col", class: i ? "number" : null }, name)))),
        h(
          "tbody",
          {},
          groups.map(({ label, rates: own }) => {
            const at = own.at(rule, costs);
            const { approve, refer, decline } = at.counts;
            return h(
              "tr",
              {},
              h("th", { scope: "row" }, label),
              [at.n, approve, ...(rule.refer ? [refer] : []), decline].map((count) => h("td", { class: "number" }, count.toLocaleString("en"))),
              h("td", { class: "number" }, Number.isNaN(at.approval.share) ? "–" : interval(at.approval)),
              h("td", { class: "number" }, Number.isNaN(at.defaulted.share) ? "–" : interval(at.defaulted)),
              h("td", { class: "number" }, figure(at.cost)),
            );
          }),
        ),
      ),
    );
    const steps = Array.from({ length: 101 }, (_, i) => toValue((i * STEPS) / 100));
    const lines = steps.map((each) => groups[0].rates.at(ruleAt(each), costs));
    fill(picture, drawRates({ width: picture.clientWidth, thresholds: steps, rates: lines, now: threshold, tick: portfolio.writeScore.tick }));
    quality.draw(groups[0].rates, rule, bad.value);
    const least = lines.reduce((best, each, i) => (each.cost < lines[best].cost ? i : best), 0);
    const isPriced = Number.isFinite(lines[least].cost);
    cheapest.textContent = isPriced ? `Over all rows the cost is least at about ${score(steps[least])}: ${number(lines[least].cost)} per row.` : "";
  }

  async function showErrors(column, outcomes) {
    const scores = portfolio.scores;
    if (range[0] < 0 || range[1] > 1) {
      fill(worst, h("p", { class: "quiet" }, "The scores are no probabilities, so that outcomes cannot be compared with them."));
      return;
    }
    const columns = portfolio.table.columns.filter((each) => each !== column && (portfolio.isRead(each) || !isId(each, rows)));
    const own = (turn = {});
    const found = (await errors(columns, rows, scores, outcomes, frame)).slice(0, SHOWN);
    if (turn !== own) return; // another outcome was chosen meanwhile
    if (!found.length) {
      fill(worst, h("p", { class: "quiet" }, "In no slice of a single column do scores and outcomes differ by more than chance."));
      return;
    }
    const points = writers(found.map(({ mean }) => mean), [], true).effect;
    fill(
      worst,
      h(
        "table",
        {},
        h("thead", {}, h("tr", {}, ["Column", "Slice", "Rows", "Mean score", "Share of outcomes", "Difference in points"].map((name, i) => h("th", { scope: "col", class: i > 1 ? "number" : null }, name)))),
        h(
          "tbody",
          {},
          found.map((each) =>
            h(
              "tr",
              {},
              h("th", { scope: "row" }, portfolio.titleOf(each.column)),
              h("td", {}, portfolio.valueOf(each.column, each.label)),
              h("td", { class: "number" }, each.n.toLocaleString("en")),
              h("td", { class: "number" }, percentInTable(each.score)),
              h("td", { class: "number" }, percentInTable(each.outcome)),
              h("td", { class: "number" }, points(each.mean), h("small", {}, ` ${points(each.low)} to ${points(each.high)}`)),
            ),
          ),
        ),
      ),
    );
  }

  redrawn(picture, rates, signal);
  const labelled = (id, text, field) => h("span", { class: "row" }, h("label", { for: id }, text), field);
  const element = h(
    "section",
    { class: "panel", "aria-labelledby": "outcomes" },
    h("h2", { id: "outcomes" }, "Outcomes and thresholds"),
    able.length
      ? [
          h("div", { class: "row" }, labelled("outcome", "Outcome", outcome), labelled("bad", "Bad is", bad), labelled("group", "By group", group)),
          h("div", { class: "row wide" }, h("label", { for: "threshold" }, "Declined"), adverse, slider, shown, profile && asProfile),
          band,
          h("div", { class: "row" }, labelled("cost-bad", "Cost of a bad one approved", costBad.element), labelled("cost-good", "of a good one declined", costGood.element)),
          table,
          picture,
          cheapest,
          quality.element,
          h("h3", {}, "Where the model errs"),
          h("p", { class: "quiet" }, "Slices of one column in which the mean score and the share of outcomes differ by more than chance (intervals of 95%), the surest first."),
          worst,
        ]
      : h("p", { class: "quiet" }, "The file has no column of outcomes: one that the model does not read, with two kinds of values."),
  );
  return { element, draw };
}
