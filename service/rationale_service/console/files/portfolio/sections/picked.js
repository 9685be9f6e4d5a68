// Rows that were picked, by a filter or a click, as a table that leads to each row's own explanation.

import { changed } from "../../address.js";
import { fill, h, visible } from "../../dom.js";
import { numberEntry } from "../../entry.js";
import { number } from "../../format.js";
import { descending } from "../statistics.js";
import { cell, instance, described } from "../words.js";

const PAGE = 25;
const SHOWN = 3; // attributions of a row
const MOST_WORDS = 200;
const SCORE = "\u0000score"; // no column of a file is called so

export function makePicked(portfolio, { pickAll }) {
  const column = h("select", { id: "filter-column", onchange: () => operands() });
  const operand = h("span", { class: "row" });
  const isShare = () => column.value === SCORE && portfolio.writeScore.unit !== "";
  const ends = { from: numberEntry({ id: "filter-from", isShare }), to: numberEntry({ id: "filter-to", isShare }) };
  const count = h("p", { id: "picked-count", role: "status" });
  const rows = h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Picked rows" });
  const page = h("div", { class: "row" });
  let at = 0;

  column.append(
    h("option", { value: SCORE }, "score"),
    ...portfolio.table.columns.map((each, i) => h("option", { value: i }, portfolio.titleOf(each.name))),
  );

  function operands() {
    const own = column.value === SCORE ? null : portfolio.table.columns[Number(column.value)];
    if (own?.kind === "text" && own.words.length <= MOST_WORDS) {
      const words = [...own.words].sort();
      fill(operand, h("select", { id: "filter-word", "aria-label": "is" }, words.map((word) => h("option", { value: word }, word))));
    } else if (own?.kind === "text") {
      fill(operand, h("input", { id: "filter-word", "aria-label": "is" }));
    } else {
      const field = (name) => [h("label", { for: `filter-${name}` }, name), ends[name].element];
      fill(operand, field("from"), field("to"));
    }
  }

  function filter(event) {
    event.preventDefault();
    const isScore = column.value === SCORE;
    const own = isScore ? null : portfolio.table.columns[Number(column.value)];
    const name = isScore ? "score" : own.name;
    const found = [];
    if (own?.kind === "text") {
      const word = operand.querySelector("#filter-word").value;
      const code = own.words.indexOf(word);
      for (let k = 0; k < portfolio.n; k++) if (code >= 0 && own.codes[portfolio.rows[k]] === code) found.push(k);
      pickAll(found, `where ${name} is ${word}`);
      return;
    }
    const [low, high] = [ends.from.read(), ends.to.read()];
    if (low === undefined || high === undefined) return;
    for (let k = 0; k < portfolio.n; k++) {
      const value = isScore ? portfolio.scores[k] : own.values[portfolio.rows[k]];
      if (value >= (low ?? -Infinity) && value <= (high ?? Infinity)) found.push(k);
    }
    const write = isScore ? (end) => portfolio.writeScore.value(end, 4) : number;
    pickAll(found, `where ${name} is ${low === null ? "" : `from ${write(low)} `}${high === null ? "" : `up to ${write(high)}`}`.trim());
  }

  function draw() {
    const { picked } = portfolio;
    at = Math.min(at, Math.max(Math.ceil(picked.length / PAGE) - 1, 0));
    count.textContent = picked.length
      ? visible(`${picked.length.toLocaleString("en")} ${picked.length === 1 ? "row" : "rows"} picked ${portfolio.pickedWhy}.`)
      : "No row is picked: click one in a picture, drag over the map, or filter.";
    const shown = picked.slice(at * PAGE, (at + 1) * PAGE);
    const others = portfolio.others().slice(0, 3);
    fill(
      rows,
      shown.length > 0 &&
        h(
          "table",
          {},
          h("thead", {}, h("tr", {}, ["Row", ...others.map((each) => each.name), "Score", "Largest attributions"].map((name) => h("th", { scope: "col" }, name)))),
          h("tbody", {}, shown.map((place) => line(place, others))),
        ),
    );
    const last = Math.ceil(picked.length / PAGE);
    fill(
      page,
      last > 1 && [
        h("button", { type: "button", disabled: at === 0, onclick: () => turn(-1) }, "Before"),
        h("span", {}, `${at + 1} of ${last}`),
        h("button", { type: "button", disabled: at === last - 1, onclick: () => turn(1) }, "Next"),
      ],
    );
  }

  function turn(by) {
    at += by;
    draw();
    rows.focus();
  }

  function line(place, others) {
    const row = portfolio.rows[place];
    const sizes = portfolio.explained.attributions.map((each) => Math.abs(each[place]));
    const largest = descending(sizes).slice(0, SHOWN).map((j) => described(portfolio, j, place));
    const link = changed({ view: "explain", row: JSON.stringify(instance(portfolio, place)), digest: portfolio.features.digest });
    return h(
      "tr",
      {},
      h("th", { scope: "row", class: "number" }, h("a", { href: link, "aria-label": `Explain row ${row + 1}` }, row + 1)),
      others.map((each) => h("td", {}, cell(each, row))),
      h("td", { class: "number" }, portfolio.writeScore.value(portfolio.scores[place], 4)),
      h("td", { class: "largest" }, largest.join(" · ")),
    );
  }

  const form = h(
    "form",
    { class: "row", onsubmit: filter },
    h("label", { for: "filter-column" }, "Rows whose"), column, operand,
    h("button", { type: "submit" }, "Pick"),
    h("button", { type: "button", onclick: () => pickAll([], "") }, "None"),
  ); // prettier-ignore
  operands();
  const element = h(
    "section",
    { class: "panel", "aria-labelledby": "picked" },
    h("h2", { id: "picked" }, "Picked rows"),
    form,
    count,
    rows,
    page,
  );
  return { element, draw, restart: () => (at = 0) };
}
