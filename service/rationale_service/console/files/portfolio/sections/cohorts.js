// Two cohorts beside each other: how the attributions of one differ from those of the other.

import { fill, h } from "../../dom.js";
import { drawInterval } from "../../pictures/interval.js";
import { isId, slices } from "../outcomes.js";
import { descending, difference, meanInterval } from "../statistics.js";

const MOST = 15;
const PICKED = "picked";
const OTHERS = "all others";

export function makeCohorts(portfolio) {
  const by = h("select", { id: "cohort-by", onchange: () => split() });
  const first = h("select", { id: "cohort-a", onchange: () => compare() });
  const second = h("select", { id: "cohort-b", onchange: () => compare() });
  const result = h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Comparison" });
  const note = h("p", { class: "quiet" });
  const both = h("span", { class: "row", hidden: true }, h("label", { for: "cohort-a" }, "A"), first, h("label", { for: "cohort-b" }, "B"), second);
  const columns = portfolio.table.columns.filter((column) => portfolio.isRead(column) || !isId(column, portfolio.rows));
  let groups = new Map();

  by.append(
    h("option", { value: "" }, "choose a column"),
    h("option", { value: PICKED }, "picked rows"),
    ...columns.map((column, i) => h("option", { value: i }, portfolio.titleOf(column.name))),
  );

  function split() {
    const rows = portfolio.rows.subarray(0, portfolio.n);
    if (by.value === "") groups = new Map();
    else if (by.value === PICKED) groups = new Map([["picked rows", portfolio.picked]]);
    else groups = new Map(slices(columns[Number(by.value)], rows, { called: (name, text) => portfolio.valueOf(name, text) }));
    both.hidden = by.value === "";
    const options = [...groups].map(([label, members]) => h("option", { value: label }, `${label} (${members.length.toLocaleString("en")})`));
    fill(first, options);
    fill(second, [...options.map((each) => each.cloneNode(true)), h("option", { value: OTHERS }, OTHERS)]);
    if (groups.size > 1) second.selectedIndex = 1;
    compare();
  }

  function compare() {
    const a = groups.get(first.value) ?? [];
    const b = second.value === OTHERS ? rest(a) : (groups.get(second.value) ?? []);
    if (a.length < 2 || b.length < 2 || (first.value === second.value && second.value !== OTHERS)) {
      fill(result);
      note.textContent = by.value === "" ? "" : "Choose two cohorts of at least two rows each.";
      return;
    }
    const found = portfolio.explained.attributions.map((column) => {
      const [x, y] = [meanInterval(column, a), meanInterval(column, b)];
      return { x, y, apart: difference(x, y) };
    });
    const order = descending(found.map(({ apart }) => Math.abs(apart.mean))).slice(0, MOST);
    const most = Math.max(...order.map((j) => Math.max(Math.abs(found[j].apart.low), Math.abs(found[j].apart.high))));
    const [scoreA, scoreB] = [meanInterval(portfolio.scores, a), meanInterval(portfolio.scores, b)];
    fill(
      result,
      h(
        "table",
        {},
        h("thead", {}, h("tr", {}, [portfolio.write.unit ? `Mean attribution, ${portfolio.write.unit}` : "Mean attribution", `A: ${first.value}`, `B: ${second.value}`, "A − B", "95% interval of A − B"].map((name, i) => h("th", { scope: "col", class: i && i < 4 ? "number" : null }, name)))),
        h(
          "tbody",
          {},
          line("score", scoreA, scoreB, difference(scoreA, scoreB), null),
          order.map((j) => line(portfolio.playerTitle(j), found[j].x, found[j].y, found[j].apart, most)),
        ),
      ),
    );
    note.textContent =
      "Means with normal intervals of 95% (Welch); a difference whose interval holds 0 is grey. " +
      "With many features, one in twenty differs so by chance.";
  }

  function rest(members) {
    const own = new Uint8Array(portfolio.n);
    for (const k of members) own[k] = 1;
    const found = [];
    for (let k = 0; k < portfolio.n; k++) if (!own[k]) found.push(k);
    return found;
  }

  function line(name, x, y, apart, most) {
    const write = most === null ? portfolio.writeScore : portfolio.write; // the unit of effects is in the head
    const half = (each) => ` ± ${write.size((each.high - each.low) / 2, 2)}`;
    const [mean, signed] = most === null ? [write.value, write.effect] : [write.size, write.signed];
    return h(
      "tr",
      { class: apart.low <= 0 && apart.high >= 0 ? "quiet" : null },
      h("th", { scope: "row" }, name),
      h("td", { class: "number" }, mean(x.mean), h("small", {}, half(x))),
      h("td", { class: "number" }, mean(y.mean), h("small", {}, half(y))),
      h("td", { class: "number" }, signed(apart.mean), h("small", {}, half(apart))),
      h("td", {}, most === null ? `${signed(apart.low)} to ${signed(apart.high)}` : drawInterval(apart, most)),
    );
  }

  const element = h(
    "section",
    { class: "panel", "aria-labelledby": "cohorts" },
    h("h2", { id: "cohorts" }, "Two cohorts compared"),
    h("div", { class: "row" }, h("label", { for: "cohort-by" }, "By"), by, both),
    result,
    note,
  );
  return { element, draw: split };
}
