// How good the scores are, where outcomes are known: ROC, calibration, and what the threshold makes of them.

import { fill, h } from "../../dom.js";
import { number, percent, percentInTable } from "../../format.js";
import { drawSquare } from "../../pictures/square.js";
import { calibration, rate, roc } from "../outcomes.js";

const OUTCOMES = { approve: "Approved", refer: "Referred", decline: "Declined" };

export function makeQuality() {
  const pictures = h("div", { class: "squares" });
  const table = h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Outcomes by decision" });

  /** `rates` of all rows; `bad` as the column calls it. */
  function draw(rates, rule, bad) {
    const { points, area } = roc(rates, rule.adverse);
    const { n, counts, defaults } = rates.at(rule, { bad: 1, good: 1 });
    const all = defaults.approve + defaults.refer + defaults.decline;
    const caught = { bad: rate(defaults.decline, all), good: rate(counts.decline - defaults.decline, n - all) };
    const mark = all && all < n ? [caught.good.share, caught.bad.share] : null;
    const bins = calibration(rates, rule.adverse);
    const shown = bins.map((bin) => `${percent(bin.x)}: ${percent(bin.y)} (${percent(bin.low)} to ${percent(bin.high)}, ${bin.n.toLocaleString("en")} rows)`);
    fill(
      pictures,
      h("figure", {}, h("figcaption", {}, `ROC: area ${number(area, 3)}`),
        drawSquare({ label: `ROC curve, area ${number(area, 3)}`, across: "declined of the good", up: "declined of the bad", line: points, mark }),
        h("p", { class: "quiet" }, "Of all thresholds; the circle is the present one. 0.5 is chance.")),
      bins.length > 0 &&
        h("figure", {}, h("figcaption", {}, "Calibration"),
          drawSquare({ label: `Calibration, mean score and share: ${shown.join("; ")}`, across: "mean score", up: rule.adverse === "above" ? "share of bad" : "share of good", points: bins }),
          h("p", { class: "quiet" }, "Tenths of the rows by their scores, with Wilson’s intervals of 95%. On the diagonal scores are what happens.")),
    ); // prettier-ignore
    const kinds = Object.keys(OUTCOMES).filter((kind) => kind !== "refer" || rule.refer);
    const cell = (count, of) => h("td", { class: "number" }, count.toLocaleString("en"), h("small", {}, of ? ` ${percentInTable(count / of)}` : ""));
    const line = (name, of, own) => h("tr", {}, h("th", { scope: "row" }, name), kinds.map((kind) => cell(own(kind), of)), h("td", { class: "number" }, of.toLocaleString("en")));
    fill(
      table,
      h(
        "table",
        {},
        h("thead", {}, h("tr", {}, ["Outcome", ...kinds.map((kind) => OUTCOMES[kind]), "Rows"].map((name, i) => h("th", { scope: "col", class: i ? "number" : null }, name)))),
        h("tbody", {}, line(`${bad} (bad)`, all, (kind) => defaults[kind]), line("good", n - all, (kind) => counts[kind] - defaults[kind])),
      ),
    );
  }

  const element = h("div", {}, h("h3", {}, "How good the scores are"), pictures, table);
  return { element, draw };
}
