// One row: its score, what each feature adds to it, and what would change it.

import * as api from "../api.js";
import { fill, h } from "../dom.js";
import { Scores, along } from "../explain/along.js";
import { sketch } from "../explain/sketch.js";
import { source } from "../explain/source.js";
import { Form } from "../form.js";
import { number, percent, rest, formatted, writers } from "../format.js";
import { parseNumber } from "../parse.js";
import { bars, scaleOf, shortened } from "../pictures/bars.js";
import { classTable } from "../pictures/classes.js";
import { summaryOf } from "../pictures/summary.js";
import { HEADING, officersCopy } from "../recourse.js";
import * as rows from "../rows.js";
import { classScores, element, isShare, predictedClass, ruleOf, targetName, targetOption, targets } from "../score.js";
import { shownOf, titleOf, typical } from "../values.js";

export const title = "Explain";

const IDLE = 220; // milliseconds without a move, after which the curves are drawn anew
const SLOW = 500; // milliseconds of an answer, after which it is said that one is waited for
const KINDS = { waterfall: "Waterfall", bars: "Bars from zero" };

export function unavailable(model) {
  const arrays = rows.arrays(model).map((input) => input.name);
  if (!arrays.length && rows.fields(model).length) return "";
  return `No form can fill in ${arrays.slice(0, 4).join(", ")}: the model takes arrays. “Pictures and words” shows such models.`;
}

export async function show(root, at, context) {
  await new Explain(root, at, context).begin();
}

class Explain {
  constructor(root, at, context) {
    Object.assign(this, { root, context, model: context.model, signal: context.signal });
    this.fields = rows.fields(this.model);
    this.explainer = at.explainer || undefined;
    this.kind = at.picture in KINDS ? at.picture : "waterfall";
    this.target = Math.max(0, Number.parseInt(at.target, 10) || 0);
    this.threshold = at.threshold ?? "";
    this.beside = at.beside ?? "";
    this.other = at.other ? rows.read(this.fields, at.other) : null;
    this.asReference = at.reference === "1";
    this.set = at.set ?? "";
    this.form = new Form(this.fields, rows.read(this.fields, at.row), (row) => this.moved(row));
    this.latest = new api.Latest(
      (row) => this.ask(row),
      (answer) => this.shown(answer),
      (error) => this.troubled(error),
    );
  }

  /** Why there is no score; empty where there is one. */
  get trouble() {
    const absent = this.beside === "row" && this.other ? rows.lacking(this.fields, this.other) : [];
    const names = absent.slice(0, 5).map(titleOf);
    return this.form.trouble || (absent.length ? `The second row is incomplete: no value for ${names.join(", ")}. Choose another row.` : "");
  }

  /** The reader's threshold; null without one. Throws an Error where it is no number. */
  get own() {
    return this.threshold.trim() ? parseNumber(this.threshold, { share: isShare(this.model, this.model.output) }) : null;
  }

  async begin() {
    this.summary = h("div", { class: "summary panel" });
    this.panels = h("div", { class: "answers" });
    this.told = h("p", { class: "problem panel", role: "alert", hidden: true });
    this.busy = h("span", { class: "quiet", role: "status", hidden: true }, "The gateway is working on it …");
    this.recourse = h("section", { class: "panel recourse", "aria-label": HEADING, hidden: true });
    this.tools = h("div", { class: "tools-row" });
    this.root.append(
      h("h1", {}, `Explain ${this.model.model}`),
      this.tools,
      this.busy,
      h("div", { class: "explain-columns" }, h("section", { class: "panel", "aria-label": "The row" }, source(this.model, { take: (row) => this.take(row), present: () => this.form.row }), this.form.element), h("div", {}, this.summary, this.told, this.panels)),
      this.recourse,
    );
    sketch(this.form); // so that nothing moves when the curves are there
    await this.second();
    this.toolbar();
    this.moved(this.form.row);
  }

  // --- asking ---------------------------------------------------------------------------------------------

  /** The row is another one: ask for it, and for the curves and recourse once it stays. */
  moved(row) {
    clearTimeout(this.idle);
    this.curves?.abort();
    this.recourse.setAttribute("aria-busy", "true");
    this.root.dataset.asking = rows.written(row);
    if (this.trouble) return this.unanswered(this.trouble);
    this.latest.ask(row);
    this.root.dataset.asked = this.latest.counts.asked;
  }

  /** There is no score: nothing of a former one stays. */
  unanswered(text) {
    this.tell(text);
    this.summary.hidden = this.recourse.hidden = true;
    fill(this.summary);
    fill(this.panels);
    sketch(this.form);
  }

  tell(text) {
    this.told.hidden = !text;
    if (this.told.textContent !== text) fill(this.told, text);
  }

  async ask(row) {
    const more = { explainer: this.explainer };
    const pair = this.beside === "row" && this.other;
    if (this.set) more.reference_set = this.set;
    else if (pair && this.asReference) more.references = [this.other];
    const options = { signal: this.signal };
    const compared = [row, ...(pair && !more.references ? [this.other] : [])];
    const first = api.patiently(() => api.explain(this.model.model, compared, more, options), options);
    const secondModel = this.secondModel && api.explain(this.secondModel.model, [this.forSecond(row)], {}, options);
    const slow = setTimeout(() => (this.busy.hidden = false), SLOW);
    try {
      const [answer, second] = await Promise.all([first, secondModel]);
      return { row, answer, second, compared: Boolean(more.references) };
    } finally {
      clearTimeout(slow);
      this.busy.hidden = true;
    }
  }

  forSecond(row) {
    return Object.fromEntries(rows.fields(this.secondModel).map((field) => [field.name, row[field.name]]));
  }

  shown({ row, answer, second, compared }) {
    if (this.trouble) return; // the row was one until it was asked for
    this.tell("");
    this.summary.hidden = false;
    const views = [this.view(this.model, answer, 0, row, compared ? "Why this row and not the second one" : "This row")];
    if (answer.explanations.length > 1) views.push(this.view(this.model, answer, 1, this.other, "The second row"));
    if (second) views.push(this.view(this.secondModel, second, 0, row, `By the model ${this.secondModel.model}`));
    if (compared) views[0].startName = "score of the second row";
    this.rule = this.ruleFor(this.model, views[0].target);
    this.present = views[0];
    this.draw(views);
    clearTimeout(this.idle);
    this.idle = setTimeout(() => this.rested(), IDLE);
    // What is seen, for whoever reads the page by a program.
    Object.assign(this.root.dataset, { ...this.latest.counts, row: rows.written(row) });
  }

  /** The rule of a model; none where the reader's threshold is no number, which stands beside it then. */
  ruleFor(model, target) {
    try {
      return ruleOf(model, this.own, target);
    } catch {
      return null;
    }
  }

  /** What is shown of one row of an answer. */
  view(model, answer, i, row, name) {
    const all = targets(answer.explanations[i]);
    const one = this.chosen(answer.explanations[i]);
    const titles = new Map([...rows.fields(model), ...model.groups].map((each) => [each.name, each]));
    const items = Object.entries(one.attributions)
      .filter(([, amount]) => typeof amount === "number")
      .map(([feature, amount]) => ({ feature, amount, name: titles.get(feature)?.title ?? feature, ...this.shownOf(titles.get(feature), row) }));
    return {
      name,
      model,
      row,
      items,
      prediction: answer.predictions[i],
      explanation: one,
      target: one.target,
      explained: one.target ?? predictedClass(model, answer.predictions[i]),
      count: all.length,
      values: all.map((each) => each.explained_value),
      base: one.base_value ?? null,
      value: one.explained_value,
      gap: one.completeness_gap ?? null,
      output: answer.explainer.explained_output,
      isOutput: answer.explainer.explained_output === model.output, // false if another explainer answered
      explainer: answer.explainer,
      startName: "base value",
    };
  }

  /** What is shown of a feature or a group beside its name. */
  shownOf(field, row) {
    if (!field) return {};
    return field.features ? { members: this.membersOf(field, row) } : { shown: shownOf(field, row[field.name]) };
  }

  /** The values of a group's features, to be opened. */
  membersOf(group, row) {
    const own = new Map(this.fields.map((field) => [field.name, field]));
    const line = (name) => h("li", {}, `${own.get(name)?.title ?? name}: `, this.shownOf(own.get(name), row).shown);
    return h("details", {}, h("summary", {}, `${group.features.length} features`), h("ul", {}, group.features.map(line)));
  }

  troubled(error) {
    if (error instanceof api.Problem && [401, 403].includes(error.status)) return this.context.failed(error);
    this.unanswered(worded(error));
    Object.assign(this.root.dataset, this.latest.counts);
  }

  /** The row stays for a while: put it into the address, tell its score, draw the curves. */
  async rested() {
    const { row } = this.form;
    this.address();
    const { rule, target } = { rule: this.rule, target: this.present.target };
    const score = this.score(this.present);
    this.context.say(`score ${this.figure(this.present, score)}${rule ? `, ${rule.judge(score)}` : ""}`);
    this.curves = new AbortController();
    const signal = AbortSignal.any([this.signal, this.curves.signal]);
    const scoreOf = (prediction, explanation) => {
      const one = explanation && this.chosen(explanation);
      return rule ? rule.score(prediction, one) : (element(this.model, prediction, target) ?? one?.explained_value ?? null);
    };
    const amounts = new Map(this.present.items.map(({ feature, amount }) => [feature, Math.abs(amount)]));
    const relevance = (field) => amounts.get(field.name) ?? 0;
    const scores = new Scores(this.model, this.explainer, scoreOf);
    try {
      const curves = await along({ row, fields: this.fields, spans: this.form.spans, scores, relevance, signal });
      sketch(this.form, { curves, rule });
      if (this.model.decision) sketch(this.form, { curves, rule, flips: await this.changing(row, signal) });
      this.root.dataset.drawn = rows.written(row);
    } catch (error) {
      if (error.name !== "AbortError") this.tell(worded(error));
    }
  }

  /** Show what would have changed the decision; returns the flip points, none where the gateway tells none. */
  async changing(row, signal) {
    const show = (...content) => fill(this.recourse, h("h2", {}, HEADING), content);
    if (this.recourse.hidden) show(h("p", { class: "quiet" }, "The gateway searches …"));
    this.recourse.hidden = false;
    const only = Object.fromEntries(this.model.decision.decision_only_features.map(({ name }) => [name, null]));
    const asked = () => api.decide(this.model.model, [{ ...row, ...only }], { dry_run: true, recourse: true }, { signal });
    try {
      const { decisions } = await api.patiently(asked, { signal });
      const form = { fields: rows.decisionFields(this.model), groups: this.model.groups };
      const take = (changes) => this.take(Object.fromEntries(Object.entries({ ...row, ...changes }).filter(([name]) => Object.hasOwn(row, name))));
      show(officersCopy(decisions[0], row, form, { take, figure: (score) => this.figure(this.present, score) }));
      return decisions[0].recourse.flip_points;
    } catch (error) {
      if (!(error instanceof api.Problem)) throw error;
      show(h("p", { class: "quiet" }, worded(error)));
      return [];
    } finally {
      if (!signal.aborted) this.recourse.removeAttribute("aria-busy");
    }
  }

  /** What is held against the threshold; without one, what is explained. */
  score(view) {
    const rule = view.model === this.model ? this.rule : this.ruleFor(view.model, view.target);
    return rule ? rule.score(view.prediction, view.explanation) : view.value;
  }

  /** A score, or what a score is held against, as text. */
  figure(view, score) {
    return this.isShare(view) ? percent(score) : number(score);
  }

  isShare({ model }) {
    return isShare(model, model.decision?.output ?? model.output);
  }

  chosen(explanation) {
    const all = targets(explanation);
    return all[Math.min(this.target, all.length - 1)];
  }

  address() {
    this.context.go({
      row: rows.written(this.form.row),
      target: this.target ? String(this.target) : "",
      picture: this.kind === "waterfall" ? "" : this.kind,
      threshold: this.model.decision ? "" : this.threshold,
      beside: this.beside,
      other: this.beside === "row" && this.other ? rows.written(this.other) : "",
      reference: this.asReference && this.beside === "row" ? "1" : "",
      set: this.set,
    });
  }

  // --- what is seen ---------------------------------------------------------------------------------------

  draw(views) {
    this.views = views;
    const threshold = this.rule?.explained && views[0].isOutput ? this.rule.threshold : null;
    const together = views.filter(({ model }) => model === this.model);
    this.scale = scaleOf(together, this.kind, this.scale, threshold);
    fill(this.summary, this.figures(views[0]), views[0].count > 1 && this.targetChoice(views[0]));
    fill(
      this.panels,
      views.map((view) => {
        const own = view.model === this.model;
        const write = writers(shortened(view.items).map(({ amount }) => amount), [view.base ?? view.value, view.value], isShare(view.model, view.output));
        const picture = bars({
          items: view.items,
          write,
          base: view.base,
          value: view.value,
          kind: this.kind,
          threshold: own ? threshold : null,
          scale: own ? this.scale : scaleOf([view], this.kind),
          caption: `${view.name}: what each feature adds to ${targetName(view.model, view.explained)}`,
          startName: view.startName,
          valueName: this.model.decision?.space === "margin" || !view.isOutput ? "margin" : "score",
        });
        const head = views.length > 1 && [h("h2", {}, view.name), h("p", {}, "score ", h("strong", {}, this.figure(view, this.score(view))))];
        return h("section", { class: "panel", "aria-label": view.name }, head, this.classes(view), this.sentence(view, write), picture, this.byFeature(view), this.foot(view));
      }),
    );
  }

  /** The score of each class, if there are several. */
  classes({ model, prediction, explained }) {
    const found = classScores(model, prediction);
    return found && classTable({ names: model.class_names ?? [], ...found, explained });
  }

  /** The picture in one line. */
  sentence(view, write) {
    const rule = view.model === this.model ? this.rule : null;
    const isMargin = !view.isOutput || this.model.decision?.space === "margin";
    const unit = !view.isOutput || (rule && !rule.explained) ? (isMargin ? "margin" : "explained value") : "";
    const line = summaryOf({ ...view, write, score: this.score(view), threshold: rule?.threshold ?? null, unit, isShare: this.isShare(view) });
    return h("p", { class: "sentence" }, line);
  }

  figures(view) {
    const score = this.score(view);
    const judged = this.rule?.judge(score);
    const badge = judged && h("span", { class: `badge ${this.rule.passes(score) ? "good" : judged === "refer" ? "between" : "bad"}` }, judged);
    const explained = (value) => (isShare(view.model, view.output) ? percent(value) : number(value));
    const figure = (name, value) => h("div", {}, h("dt", {}, name), h("dd", {}, value));
    return h(
      "dl",
      { class: "figures" },
      h("div", { class: "main" }, h("dt", {}, this.rule && !this.rule.explained ? "score" : targetName(view.model, view.explained)), h("dd", {}, h("span", { id: "score" }, this.figure(view, score)), badge)),
      this.rule && figure("threshold", this.figure(view, this.rule.threshold)),
      this.rule && !this.rule.explained && figure("explained value", explained(view.value)),
      view.base !== null && figure(view.startName, explained(view.base)),
      view.gap !== null && figure("completeness gap", rest(view.gap)),
      furtherOf(view).flatMap(({ name, value }) => (typeof value === "number" ? figure(name, number(value)) : [])),
    );
  }

  /** Numbers by feature of further kinds of outputs, a table each. */
  byFeature(view) {
    const row = ([feature, value]) => h("tr", {}, h("th", { scope: "row" }, view.items.find((item) => item.feature === feature)?.name ?? feature), h("td", { class: "number" }, number(value)));
    return furtherOf(view).filter(({ value }) => typeof value === "object").map(({ name, meaning, value }) =>
      h("details", {}, h("summary", { title: meaning }, name), h("table", {}, h("tbody", {}, Object.entries(value).filter(([, each]) => typeof each === "number").map(row)))));
  }

  foot(view) {
    const { name, method, digest } = view.explainer;
    return h("p", { class: "quiet foot" }, `${method}${name ? `, explainer ${name}` : ""}, digest ${digest.slice(0, 12)}`);
  }

  /** All targets, each with its value, of which one is explained. */
  targetChoice({ model, values, output }) {
    const write = (value) => (isShare(model, output) ? percent(value) : number(value));
    const option = (value, i) => h("option", { value: i, selected: i === this.target }, `${this.optionOf(i)}: ${write(value)}`);
    const change = (event) => {
      this.target = Number(event.target.value);
      this.scale = null;
      this.moved(this.form.row);
    };
    return h("label", { class: "choice" }, h("span", {}, "Explained"), h("select", { onchange: change }, values.map(option)));
  }

  optionOf(i) {
    return Array.isArray(this.model.targets) ? targetOption(this.model, this.model.targets[i]) : this.model.output;
  }

  /** Put another row into the form; the browser's Back leads to the one before. */
  take(row) {
    if (!this.trouble) this.address();
    this.form.set(row);
    if (!this.trouble) this.context.go({ row: rows.written(row) }, { step: true });
    this.moved(row);
  }

  // --- what stands beside ---------------------------------------------------------------------------------

  toolbar() {
    const { models } = this.context;
    const option = (value, name, now) => h("option", { value, selected: value === now }, name);
    const others = models.explainable.filter((name) => name !== this.model.model);
    const beside = h(
      "select",
      { onchange: () => this.setBeside(beside.value) },
      option("", "nothing", this.beside),
      option("row", "a second row", this.beside),
      others.map((name) => option(`model:${name}`, `the model ${name}`, this.beside)),
    );
    const kind = h(
      "select",
      { onchange: () => this.redrawn(() => (this.kind = kind.value)) },
      Object.entries(KINDS).map(([value, name]) => option(value, name, this.kind)),
    );
    const wrong = h("span", { class: "problem", role: "alert" });
    const judged = () => {
      wrong.textContent = "";
      own.removeAttribute("aria-invalid");
      try {
        this.own;
      } catch (error) {
        wrong.textContent = `No threshold: ${error.message}`;
        own.setAttribute("aria-invalid", "true");
      }
    };
    const own = h("input", { type: "text", inputmode: "decimal", size: 10, value: this.threshold, onchange: () => this.redrawn(() => ((this.threshold = own.value), judged())) });
    judged();
    fill(
      this.tools,
      h("label", { class: "choice" }, h("span", {}, "Picture"), kind),
      !this.model.decision && h("label", { class: "choice" }, h("span", {}, "Threshold"), own), !this.model.decision && wrong,
      h("label", { class: "choice" }, h("span", {}, "Compare with"), beside),
      this.beside === "row" && this.secondRowTools(),
      this.model.references && this.setTools(),
      this.besideTrouble && h("p", { class: "problem beside", role: "alert" }, this.besideTrouble),
    );
  }

  secondRowTools() {
    const button = (name, onclick) => h("button", { type: "button", onclick }, name);
    const other = (row) => {
      this.other = row;
      this.scale = null;
      this.moved(this.form.row);
    };
    const asReference = h("input", { type: "checkbox", onchange: () => ((this.asReference = asReference.checked), other(this.other)) });
    asReference.checked = this.asReference;
    return h(
      "span",
      { class: "row" },
      button("Take this row", () => other(this.form.row)),
      button("Typical row", () => other(typical(this.fields))),
      button("Swap", () => {
        const row = this.form.row;
        this.take(this.other);
        other(row);
      }),
      this.model.decision && this.decisionTools(other),
      this.model.request_references > 0 && !this.set && h("label", {}, asReference, " as the reference: why this one and not that one"),
    );
  }

  /** A recorded decision's row as the second one; it is read once, not with each move. */
  decisionTools(take) {
    const id = h("input", { type: "text", size: 12, placeholder: "a decision’s id", "aria-label": "The row of a recorded decision, by its id", spellcheck: "false", autocomplete: "off" });
    const problem = h("span", { class: "problem", role: "alert" });
    const read = async (event) => {
      event.preventDefault();
      problem.textContent = "";
      try {
        take(rows.read(this.fields, JSON.stringify(await this.decidedRow(id.value.trim()))));
      } catch (error) {
        if (error.name !== "AbortError") problem.textContent = worded(error);
      }
    };
    return h("form", { class: "row", onsubmit: read }, id, h("button", { type: "submit" }, "Its row"), problem);
  }

  async decidedRow(id) {
    if (!/^[0-9a-f]{32}$/.test(id)) throw new Error("An id has 32 digits and letters from a to f.");
    const record = await api.get(`v1/decisions/${id}`, { signal: this.signal });
    if (record.kind !== "decision" || record.model !== this.model.model) throw new Error(`It is not a decision of ${this.model.model}.`);
    if (!record.instance) throw new Error("The trail did not keep the inputs of this decision.");
    return record.instance;
  }

  /** Other references, by the name of a set that is kept here. */
  setTools() {
    const name = h("input", { type: "text", size: 12, value: this.set, placeholder: "the model's own", spellcheck: "false", onchange: () => this.redrawn(() => (this.set = name.value.trim())) });
    return h("label", { class: "choice" }, h("span", {}, "Reference set"), name);
  }

  redrawn(change) {
    change();
    this.scale = null;
    this.moved(this.form.row);
  }

  async setBeside(beside) {
    this.beside = beside;
    this.other ??= typical(this.fields);
    await this.second();
    this.toolbar();
    this.redrawn(() => {});
  }

  /** Look at the second model, where one is asked for. */
  async second() {
    this.secondModel = null;
    this.besideTrouble = "";
    if (this.beside === "row") this.other ??= typical(this.fields);
    if (!this.beside.startsWith("model:")) return;
    const name = this.beside.slice("model:".length);
    try {
      const found = await api.features(name, "", { signal: this.signal });
      const lacking = rows.fields(found).filter((field) => !this.fields.some((own) => own.name === field.name && own.kind === field.kind));
      if (rows.arrays(found).length || lacking.length) {
        const others = [...rows.arrays(found), ...lacking].slice(0, 5).map((one) => one.name).join(", ");
        throw new Error(`The model ${name} takes other features, which this row does not have: ${others}`);
      }
      this.secondModel = found;
    } catch (error) {
      this.beside = "";
      this.besideTrouble = worded(error);
    }
  }
}

const worded = (error) => (error.title ? `${error.title}: ${error.detail}` : error.message);

/** The members of an explanation that only some methods have, with their names in words and what they mean. */
const furtherOf = ({ model, explanation }) =>
  Object.entries(model.other_outputs ?? {}).map(([member, meaning]) => ({ name: member.replaceAll("_", " "), meaning, value: explanation[member] ?? null }))
    .filter(({ value }) => value !== null);
