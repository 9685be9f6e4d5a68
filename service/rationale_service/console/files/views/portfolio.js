// The portfolio: a file of up to 100,000 rows, explained as it is dropped, and drawn as it comes.

import { Problem } from "../api.js";
import { fill, h, visible } from "../dom.js";
import { number } from "../format.js";
import { Fault } from "../csv.js";
import { frame, lacked, noTable, prepare, read } from "../portfolio/run.js";
import { saveRows } from "../portfolio/save.js";
import { makeCohorts } from "../portfolio/sections/cohorts.js";
import { makeCurves } from "../portfolio/sections/curves.js";
import { makeDependence } from "../portfolio/sections/dependence.js";
import { makeMap } from "../portfolio/sections/map.js";
import { makeOutcomes } from "../portfolio/sections/outcomes.js";
import { makePicked } from "../portfolio/sections/picked.js";
import { makeRows } from "../portfolio/sections/rows.js";
import { makeWeights } from "../portfolio/sections/weights.js";
import { targetOption } from "../score.js";

export const title = "Portfolio";
export const unavailable = noTable;

const REDRAW_MS = 500; // at the soonest, while rows come
let kept = null; // the last portfolio, for whoever comes back from another view: {digest, portfolio}

export async function show(root, address, context) {
  const { model, signal } = context;
  const status = h("p", { class: "quiet", id: "portfolio-status" });
  const problem = h("p", { class: "problem", role: "alert" });
  const bar = h("progress", { max: 1, value: 0, hidden: true, "aria-label": "Rows explained" });
  const cancel = h("button", { type: "button", hidden: true, onclick: () => running?.abort() }, "Cancel");
  const target = targets(model);
  const save = h("button", { type: "button", hidden: true, onclick: () => saveRows(kept.portfolio) }, "Save the attributions as CSV");
  const results = h("div", { class: "portfolio-results" });
  let running = null;

  async function take(file) {
    running?.abort();
    const own = new AbortController();
    running = own;
    signal.addEventListener("abort", () => own.abort());
    problem.textContent = "";
    save.hidden = true;
    root.dataset.state = "running";
    bar.hidden = cancel.hidden = false;
    bar.removeAttribute("value");
    const began = performance.now();
    try {
      status.textContent = visible(`Reading ${file.name} …`);
      const table = await read(file, model, (rows) => (status.textContent = `${count(rows)} rows read …`), own.signal);
      const { portfolio, start } = prepare(file.name, table, model, Number(target?.value ?? 0));
      const pictures = draw(results, portfolio, own.signal, context);
      const { took, settled } = paced(pictures, portfolio, bar, status);
      await start(took, own.signal);
      await settled();
      await pictures.all();
      kept = { digest: model.digest, portfolio };
      save.hidden = false;
      const seconds = (performance.now() - began) / 1000;
      status.textContent = visible(`${summary(portfolio)} Read, explained and drawn in ${number(seconds, 3)} s.`);
      root.dataset.state = "drawn";
      root.dataset.seconds = String(seconds);
      context.say(`${count(portfolio.n)} rows explained`);
    } catch (error) {
      if (running !== own) return; // another file has taken its place
      root.dataset.state = "failed";
      if (own.signal.aborted) status.textContent = `Cancelled. ${results.dataset.rows ? `${results.dataset.rows} rows are shown.` : ""}`;
      else report(error);
    } finally {
      if (running === own) bar.hidden = cancel.hidden = true;
    }
  }

  function report(error) {
    status.textContent = "";
    if (error instanceof Fault) problem.textContent = visible(error.message);
    else if (!(error instanceof Problem) || error.status === 401 || error.status === 403) context.failed(error);
    else problem.textContent = visible(`The gateway refused the rows: ${error.detail || error.title}`);
  }

  fill(root, h("h1", {}, title), drop(take, target), h("div", { class: "row" }, bar, cancel), problem, status, save, results);
  droppable(root, take, signal);
  if (kept?.digest === model.digest) {
    const pictures = draw(results, kept.portfolio, signal, context);
    status.textContent = visible(summary(kept.portfolio));
    await pictures.all();
    save.hidden = false;
    root.dataset.state = "drawn";
  }
}

function drop(take, target) {
  const input = h("input", {
    type: "file",
    id: "portfolio-file",
    accept: ".csv,.txt,.tsv,.parquet,text/csv",
    onchange: () => input.files.length && take(input.files[0]),
  });
  return h(
    "div",
    { class: "panel drop" },
    h("label", { for: "portfolio-file" }, "Drop a CSV or parquet file here, or choose one: a row for each case, up to 100,000"),
    input,
    target && h("span", { class: "row" }, h("label", { for: "target" }, "Explain output"), target),
    h("p", { class: "quiet" }, "The page finds columns by the names of the features. Other columns, such as outcomes and regions, stay in this page."),
  );
}

/** Take what is dropped anywhere on the view: beside the marked place the browser would open the file. */
function droppable(root, take, signal) {
  const over = (isOver) => root.querySelector(".drop")?.classList.toggle("over", isOver);
  const listen = (name, then) => root.addEventListener(name, then, { signal });
  listen("dragover", (event) => {
    event.preventDefault();
    over(true);
  });
  listen("dragleave", () => over(false));
  listen("drop", (event) => {
    event.preventDefault();
    over(false);
    if (event.dataTransfer.files.length) take(event.dataTransfer.files[0]);
  });
}

function targets(model) {
  if (!Array.isArray(model.targets) || model.targets.length < 2) return null;
  return h("select", { id: "target" }, model.targets.map((each, i) => h("option", { value: i }, targetOption(model, each))));
}

/** Make the pictures of a portfolio; `quick` draws what can be drawn of some rows, `all` everything. */
function draw(results, portfolio, signal, context) {
  const pickAll = (places, why) => {
    portfolio.picked = places;
    portfolio.pickedWhy = why;
    picked.restart();
    for (const each of [weights, rows, dependence, map, picked]) each.draw();
    if (document.getElementById("cohort-by")?.value === "picked") cohorts.draw();
    context.say(places.length ? `${count(places.length)} rows picked` : "No row is picked");
  };
  const pick = (place) => pickAll([place], "in a picture");
  const dependence = makeDependence(portfolio, { pick, signal });
  const choose = (j) => {
    dependence.choose(j);
    dependence.element.scrollIntoView({ behavior: "smooth", block: "nearest" });
  };
  const weights = makeWeights(portfolio, { choose, pick, signal });
  const rows = makeRows(portfolio, { pick, signal });
  const map = makeMap(portfolio, { pick, pickAll, signal });
  const picked = makePicked(portfolio, { pickAll });
  const cohorts = makeCohorts(portfolio);
  const outcomes = makeOutcomes(portfolio, { signal });
  const curves = makeCurves(portfolio, { signal });
  const columns = [[weights, dependence, map], [rows, curves, picked, cohorts, outcomes]]; // below each other where the window is narrow
  fill(results, columns.map((column) => h("div", {}, column.map(({ element }) => element))));
  const sections = columns.flat();
  return {
    quick() {
      results.dataset.rows = count(portfolio.n);
      weights.draw();
    },
    async all() {
      results.dataset.rows = count(portfolio.n);
      for (const section of sections) {
        await section.draw();
        await frame();
      }
    },
  };
}

/** Take progress, and draw no more often than leaves the page awake. */
function paced(pictures, portfolio, bar, status) {
  const total = portfolio.rows.length;
  let next = 0;
  let drawing = Promise.resolve();
  const took = (n) => {
    bar.value = n / total;
    status.textContent = `${count(n)} of ${count(total)} rows explained …`;
    if (performance.now() < next || n === total) return;
    next = Infinity;
    drawing = frame().then(() => {
      const began = performance.now();
      pictures.quick();
      const after = performance.now();
      next = after + Math.max(REDRAW_MS, 4 * (after - began));
    });
  };
  return { took, settled: () => drawing };
}

function summary(portfolio) {
  const { left, name, table, features, explained } = portfolio;
  const parts = [`${name}: ${count(portfolio.n)} rows explained by ${features.method}.`];
  if (table.isCut) parts.push("The file has more: the first 100,000 are shown.");
  if (left.rows) parts.push(`${count(left.rows)} rows are left out (${lacked(left.lacking)}).`);
  const gap = explained.gaps.reduce((most, each) => Math.max(most, Math.abs(each) || 0), 0);
  if (features.has_gap) parts.push(`Largest completeness gap: ${number(gap, 2)}.`);
  return parts.join(" ");
}

const count = (n) => n.toLocaleString("en");
