// The references: whom a row is compared with, how their values are spread, and what another set would change.

import * as address from "../address.js";
import { Problem, explain, get, patiently } from "../api.js";
import { fill, h } from "../dom.js";
import { writers } from "../format.js";
import { drawSpread } from "../pictures/spread.js";
import * as rows from "../rows.js";
import { MANY, searchAmong } from "../search.js";
import { isShare } from "../score.js";
import { labelOf, titleOf } from "../values.js";

export const title = "References";

const OWN = ""; // the set that the explanation was compiled with
const NONE = "\u0000"; // no set is called so

/** Why there is nothing to see for this model; empty where there is. */
export function unavailable(model) {
  return model.references || model.request_references ? "" : `${model.method} compares a row with no references.`;
}

export async function show(root, at, context) {
  const { model, signal } = context;
  const page = new Page(root, at, context);
  await page.list(await setsOf(model, signal));
}

/** The sets of the model: {sets, why}; `why` says what keeps this caller from them. */
async function setsOf(model, signal) {
  try {
    const { reference_sets: all } = await get("v2/reference-sets", { signal });
    return { sets: all.filter((one) => one.model === model.model), why: "" };
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    if (error.status === 401 || error.status === 403) {
      return { sets: [], why: "Named sets contain people's rows: only keys with the scope admin see them." };
    }
    if (error.status === 404) return { sets: [], why: "Named sets are not shown here, because the admin API is on another port." };
    throw error;
  }
}

class Page {
  constructor(root, at, { model, signal, failed }) {
    Object.assign(this, { model, signal, failed });
    this.hasRow = Boolean(at.row);
    const fields = rows.fields(model);
    this.row = rows.read(fields, at.row);
    this.lacking = rows.lacking(fields, this.row).map(titleOf);
    this.first = h("select", { id: "first-set", onchange: () => this.chosen() });
    this.second = h("select", { id: "second-set", onchange: () => this.chosen() });
    this.table = h("div", { class: "scroll sets", tabindex: "0", role: "group", "aria-label": "Reference sets" });
    this.search = h("div", {});
    this.spreads = h("div", { class: "spreads" });
    this.moves = h("div", { class: "scroll moves", tabindex: "0", role: "group", "aria-label": "Attributions with both sets" });
    this.waiting = h("p", { class: "quiet", role: "status" });
    this.kept = new Map([[OWN, model.features]]);
    fill(
      root,
      h("h1", {}, title),
      h("section", { class: "panel", "aria-labelledby": "sets" }, h("h2", { id: "sets" }, "Sets"), this.table),
      h(
        "section",
        { class: "panel", "aria-labelledby": "spread" },
        h("h2", { id: "spread" }, "How their values are spread"),
        h(
          "div",
          { class: "row" },
          h("label", { for: "first-set" }, h("span", { class: "swatch" }), "Set"), this.first,
          h("label", { for: "second-set" }, h("span", { class: "swatch second" }), "beside"), this.second,
        ), // prettier-ignore
        h("p", { class: "quiet" }, this.rowWords()),
        this.waiting,
        this.search,
        this.spreads,
      ),
      h("section", { class: "panel", "aria-labelledby": "moves" }, h("h2", { id: "moves" }, "How the row's attributions move"), this.moves),
    );
  }

  rowWords() {
    const link = !rows.arrays(this.model).length && h("a", { href: address.changed({ view: "explain" }) }, this.hasRow ? "Change the row" : "Choose a row");
    return [this.hasRow ? "The mark is the row that is explained. " : "The mark is a typical row: the references' medians. ", link];
  }

  async list({ sets, why }) {
    const { references } = this.model;
    const own = { name: "of the explanation", rows: references?.rows, digest: references?.digest, created: null, used_by: [] };
    const all = [...(references ? [own] : []), ...sets];
    const names = ["Name", "Rows", "Age", "Digest", ...(all.some((one) => one.used_by.length) ? ["Used by"] : [])];
    fill(
      this.table,
      h(
        "table",
        {},
        h("thead", {}, h("tr", {}, names.map((name) => h("th", { scope: "col", class: name === "Rows" ? "number" : null }, name)))),
        h("tbody", {}, all.map((one) => h("tr", {}, line(one).slice(0, names.length)))),
      ),
      why && h("p", { class: "quiet" }, why),
    );
    const options = [...(references ? [["the explanation's own", OWN]] : []), ...sets.map((one) => [one.name, one.name])];
    const listed = (choices) => choices.map(([text, value]) => h("option", { value }, text));
    fill(this.first, listed(options));
    fill(this.second, listed([["none", NONE], ...options]));
    const now = address.read();
    if (sets.some((one) => one.name === now.set)) this.first.value = now.set;
    if (sets.some((one) => one.name === now.second)) this.second.value = now.second;
    await this.chosen();
  }

  /** Show the sets that are chosen, and keep them in the address. */
  async chosen() {
    const [first, second] = [this.first.value, this.second.value === NONE ? null : this.second.value];
    address.go({ set: first, second: second ?? "" });
    const turn = (this.turn = {});
    try {
      const names = [first, ...(second === null || second === first ? [] : [second])];
      const features = await Promise.all(names.map((name) => this.featuresOf(name)));
      if (this.turn !== turn) return;
      this.drawSpreads(features);
      await this.drawMoves(names, turn);
    } catch (error) {
      if (!this.signal.aborted && this.turn === turn) this.failed(error);
    }
  }

  async featuresOf(name) {
    if (!this.kept.has(name)) {
      const found = await get(`v2/reference-sets/${encodeURIComponent(name)}/spreads`, { signal: this.signal });
      this.kept.set(name, found.features.map((each) => ({ ...each, name: each.feature })));
    }
    return this.kept.get(name);
  }

  drawSpreads(sets) {
    const maps = sets.map((features) => new Map(features.map((each) => [each.name, each])));
    const fields = rows.fields(this.model).filter((field) => maps.some((each) => each.has(field.name)));
    const figures = fields.map((field) =>
      h(
        "figure",
        {},
        h("figcaption", {}, titleOf(field), field.unit && h("small", {}, ` ${field.unit}`)),
        drawSpread(field.name, maps.map((each) => each.get(field.name)), this.row[field.name], (value) => labelOf(field, value)),
      ),
    );
    const areMany = fields.length > MANY;
    this.spreads.className = areMany ? "spreads many" : "spreads";
    fill(this.search, areMany && searchAmong(fields, figures));
    fill(this.spreads, figures);
  }

  async drawMoves(names, turn) {
    if (this.lacking.length) {
      const text = `The row is incomplete: no value for ${this.lacking.slice(0, 5).join(", ")}. Enter one to see results.`;
      return void fill(this.moves, h("p", { class: "problem", role: "alert" }, text));
    }
    const arrays = rows.arrays(this.model).map((input) => input.name);
    if (arrays.length) {
      const text = `No form can fill in ${arrays.slice(0, 4).join(", ")}: this view cannot explain rows of this model.`;
      return void fill(this.moves, h("p", { class: "quiet" }, text));
    }
    const more = this.model.explainer ? { explainer: this.model.explainer } : {};
    this.waiting.textContent = "Explaining with each set; the first request for a set compiles its explanation …";
    const answers = await Promise.all(
      names.map((name) =>
        patiently(() => explain(this.model.model, [this.row], name === OWN ? more : { ...more, reference_set: name }, { signal: this.signal }), { signal: this.signal }),
      ),
    );
    if (this.turn !== turn) return;
    this.waiting.textContent = "";
    const targets = answers.map(({ explanations: [one] }) => one.targets?.[0] ?? one);
    const [a, b] = targets;
    const features = Object.keys(a.attributions).filter((name) => typeof a.attributions[name] === "number");
    const move = (name) => b.attributions[name] - a.attributions[name];
    features.sort((x, y) => (b ? Math.abs(move(y)) - Math.abs(move(x)) : Math.abs(a.attributions[y]) - Math.abs(a.attributions[x])));
    const most = Math.max(...targets.flatMap((each) => features.map((name) => Math.abs(each.attributions[name]))), Number.MIN_VALUE);
    const titles = new Map([...this.model.features, ...this.model.groups].map((each) => [each.name, each.title ?? each.name]));
    const called = (name) => (name === OWN ? "the explanation's own" : name);
    const heads = ["", ...names.map(called), ...(b ? ["moves by"] : [])];
    const shown = features.slice(0, MANY);
    const amounts = targets.flatMap((each) => shown.map((name) => each.attributions[name]));
    const write = writers(amounts, targets.map((each) => each.explained_value), isShare(this.model, this.model.output));
    const cell = (text) => h("td", { class: "number" }, text);
    const cells = (values, isTotal = false) => values.map((value, i) => cell(isTotal && i < targets.length ? write.value(value) : write.effect(value)));
    fill(
      this.moves,
      h(
        "table",
        {},
        h("thead", {}, h("tr", {}, heads.map((name, i) => h("th", { scope: "col", class: i ? "number" : null }, name || h("span", { class: "unseen" }, "Feature"))), h("th", { scope: "col" }, h("span", { class: "unseen" }, "Picture")))),
        h(
          "tbody",
          {},
          ["base_value", "explained_value"].filter((key) => key in a).map((key) =>
            h("tr", {}, h("th", { scope: "row" }, key === "base_value" ? "base value" : "score"), cells([...targets.map((each) => each[key]), ...(b ? [b[key] - a[key]] : [])], true), h("td", {})),
          ),
          shown.map((name) => {
            const values = targets.map((each) => each.attributions[name]);
            return h("tr", {}, h("th", { scope: "row" }, titles.get(name) ?? name), cells([...values, ...(b ? [move(name)] : [])]), h("td", {}, pair(values, most)));
          }),
        ),
      ), // prettier-ignore
      write.unit && h("p", { class: "quiet" }, `Effects are in ${write.unit}.`),
      features.length > shown.length && h("p", { class: "quiet" }, `${features.length - shown.length} more features ${b ? "move by less" : "are smaller"}.`),
      !b && h("p", { class: "quiet" }, "Choose a second set to see what it would change."),
    );
  }
}

function line(one) {
  return [
    h("th", { scope: "row" }, one.name),
    h("td", { class: "number" }, one.rows === undefined ? "–" : one.rows.toLocaleString("en")),
    h("td", { class: "age" }, one.created ? h("time", { datetime: one.created, title: one.created }, age(one.created)) : "as the entry"),
    h("td", {}, one.digest ? h("code", { title: one.digest }, one.digest.slice(0, 12)) : "–"),
    h("td", {}, one.used_by.join(", ")),
  ];
}

function age(created) {
  const seconds = Math.max((Date.now() - new Date(created).getTime()) / 1000, 0);
  const [size, unit] = [[86_400, "day"], [3600, "hour"], [60, "minute"]].find(([each]) => seconds >= each) ?? [1, "second"];
  const count = Math.floor(seconds / size);
  return `${count} ${unit}${count === 1 ? "" : "s"}`;
}

/** Bars of one or two values from a zero in the middle; their numbers stand beside them. */
function pair(values, most) {
  return h(
    "span",
    { class: "pair", "aria-hidden": "true" },
    values.map((value, i) => {
      const width = `${(Math.abs(value) / most) * 50}%`;
      return h("span", { class: "track" }, h("span", { class: i ? "bar second" : "bar", style: { width, "margin-left": value < 0 ? `calc(50% - ${width})` : "50%" } }));
    }),
  );
}
