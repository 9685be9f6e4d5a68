// The fields of a row: each by its name, unit and range, with a slider over the references' range.

import { fill, h } from "../dom.js";
import { number, formatted } from "../format.js";
import { curve, draw } from "../pictures/curve.js";
import { changed } from "../rows.js";
import { MANY, searchAmong } from "../search.js";
import { choicesOf, labelOf, parsed, stepOf, tidy, titleOf } from "../values.js";
import { outline } from "./along.js";

const UNKNOWN = "\u0000?"; // options that stand for no value
const MISSING = "\u0000";
const UNGIVEN = "no value is given";

export class Form {
  spans = new Map(); // of sliders, by feature
  faults = new Map(); // feature → what is wrong with its value: it is not in `row` then
  #fields = new Map();

  /** `moved(row)` is called with each new row, also while a slider moves; values that are not known are not in it. */
  constructor(fields, row, moved) {
    Object.assign(this, { fields, row, moved });
    const made = fields.map((field, i) => this.#made(field, `field-${i}`));
    const list = h("div", { class: fields.length > MANY ? "fields many" : "fields" }, made);
    this.element = h("div", {}, fields.length > MANY && searchAmong(fields, made), list);
    this.set(row);
  }

  /** Take another row whole. */
  set(row) {
    this.row = row;
    this.faults.clear();
    for (const field of this.fields) this.#shown(field, Object.hasOwn(row, field.name) ? row[field.name] : undefined);
  }

  /** What is wrong, in a sentence; empty where the row is whole. */
  get trouble() {
    const absent = this.fields.filter(({ name }) => this.faults.get(name) === UNGIVEN).map(titleOf);
    const wrong = [...this.faults.values()].filter((one) => one !== UNGIVEN);
    const all = [absent.length && `no value is given for ${some(absent, ", ")}`, wrong.length && some(wrong, "; ")].filter(Boolean);
    return all.length ? `The row is not whole, so it has no score: ${all.join("; ")}.` : "";
  }

  /** Draw the score along each slider, and where it turns; without a result, take both away. */
  paint(found, rule) {
    const result = found?.result ?? new Map();
    const curves = [...result.values()];
    const all = curves.flatMap(({ points }) => points.map(({ score }) => score));
    if (rule) all.push(rule.threshold);
    const scores = [all.reduce((a, b) => Math.min(a, b), Infinity), all.reduce((a, b) => Math.max(a, b), -Infinity)];
    for (const field of this.fields) {
      const { drawing, turns } = this.#fields.get(field.name);
      const { points = [], flips = [] } = result.get(field.name) ?? {};
      const span = this.spans.get(field.name);
      const edge = span ? (span[1] - span[0]) / 100 : 0; // by which ends of the curve may be rounded
      const isInside = (value) => span[0] - edge <= value && value <= span[1] + edge;
      if (drawing && span) {
        const threshold = found ? (rule?.threshold ?? null) : null;
        const drawn = outline(field, points, span).filter(({ value }) => isInside(value));
        draw(drawing, { points: drawn, span, scores, threshold, flips: flips.map((one) => one.value).filter(isInside) });
      }
      const word = (flip) => `${rule.judge(flip.score)} at ${labelOf(field, flip.value)}`;
      turns.textContent = this.faults.get(field.name) ?? (rule && flips.length ? `turns to ${flips.map(word).join(", ")}` : "");
    }
  }

  #made(field, id) {
    const title = titleOf(field);
    const turns = h("p", { class: "turns", id: `${id}-turns` });
    const part = { turns };
    this.#fields.set(field.name, part);
    const label = h("label", { for: id }, title, h("small", {}, [field.title && field.name, field.unit].filter(Boolean).join(" · ")));
    const take = (value) => this.#take(field, value);
    let controls;
    if (field.choices) {
      part.entry = h("select", { id, "aria-describedby": turns.id, onchange: () => take(part.choices.get(part.entry.value)) });
      controls = [part.entry];
    } else if (field.kind === "text") {
      part.entry = h("input", { id, spellcheck: "false", "aria-describedby": turns.id, oninput: () => take(part.entry.value) });
      controls = [part.entry];
    } else {
      controls = this.#numbered(field, id, title, part);
    }
    if (field.missing && field.kind === "number") {
      part.missing = h("input", { type: "checkbox", onchange: () => take(part.missing.checked ? null : part.last) });
      controls.push(h("label", { class: "missing" }, part.missing, "missing"));
    }
    return h("div", { class: `field of-${field.kind}` }, label, controls, turns);
  }

  #numbered(field, id, title, part) {
    part.drawing = curve();
    part.entry = h("input", {
      id,
      type: "text",
      inputmode: "decimal",
      autocomplete: "off",
      "aria-describedby": part.turns.id,
      onchange: () => this.#typed(field, part),
      onkeydown: (event) => event.key === "Enter" && this.#typed(field, part),
    });
    part.slider = h("input", {
      type: "range",
      step: "any",
      "aria-label": `${title}, slider`,
      "aria-describedby": part.turns.id,
      oninput: () => this.#slid(field, part),
    });
    part.ends = h("div", { class: "ends" });
    part.isGiven = [field.least, field.most].every((end) => end !== undefined);
    if (part.isGiven) this.#stretch(field, part, field.least, field.most);
    return [part.entry, h("div", { class: "slide" }, part.drawing, part.slider, part.ends)];
  }

  /** Give the slider these ends. */
  #stretch(field, part, least, most) {
    const span = least < most ? [least, most] : [least - 1, most + 1];
    this.spans.set(field.name, span);
    Object.assign(part.slider, { min: span[0], max: span[1], step: stepOf(field, span[1] - span[0]) });
  }

  #slid(field, part) {
    const [least, most] = this.spans.get(field.name);
    this.#take(field, tidy(Number(part.slider.value), field, most - least), true);
  }

  #typed(field, part) {
    try {
      this.#take(field, parsed(field, part.entry.value));
    } catch (error) {
      this.#wrong(field, part, error.message);
      this.#moves(field, undefined);
    }
  }

  #wrong(field, part, message) {
    this.faults.set(field.name, message);
    part.entry.setAttribute("aria-invalid", "true");
    part.turns.textContent = message;
  }

  #take(field, value, isSlid = false) {
    if (value === undefined) value = this.spans.get(field.name)?.[0] ?? 0;
    this.#shown(field, value, isSlid);
    this.#moves(field, value);
  }

  #moves(field, value) {
    this.row = changed(this.row, field.name, value);
    this.moved(this.row);
  }

  /** Show a value; undefined is one that is not known. */
  #shown(field, value, isSlid = false) {
    const part = this.#fields.get(field.name);
    if (value !== null && value !== undefined) part.last = value;
    if (part.missing) part.missing.checked = value === null;
    part.entry.removeAttribute("aria-invalid");
    if (this.faults.delete(field.name)) part.turns.textContent = "";
    if (value === undefined) this.#wrong(field, part, UNGIVEN);
    if (part.entry.tagName === "SELECT") this.#choices(field, part, value);
    else {
      part.entry.value = value ?? "";
      if (field.kind === "number") part.entry.size = Math.min(24, Math.max(8, part.entry.value.length + 1));
    }
    if (!part.slider) return;
    part.slider.classList.toggle("unset", typeof value !== "number");
    if (typeof value !== "number") return;
    const own = this.spans.get(field.name);
    const isBeyond = !own || value < own[0] || value > own[1];
    if (isBeyond && !part.isGiven) this.#stretch(field, part, value - Math.max(Math.abs(value), 1), value + Math.max(Math.abs(value), 1));
    if (!isSlid) part.slider.value = value; // at its end where that lies beyond
    part.slider.setAttribute("aria-valuetext", formatted(value));
    const [least, most] = this.spans.get(field.name);
    const beyond = value < least || value > most ? h("span", { class: "beyond" }, "beyond this range") : null;
    fill(part.ends, h("span", {}, number(least)), beyond, h("span", {}, number(most)));
  }

  #choices(field, part, value) {
    const known = choicesOf(field, value ?? null);
    const special = [...(value === undefined ? [[UNKNOWN, undefined, "choose …"]] : []), ...(field.missing && field.kind !== "number" ? [[MISSING, null, "missing"]] : [])];
    const all = [...special, ...known.map((each) => [String(each), each, labelOf(field, each)])];
    part.choices = new Map(all.map(([key, each]) => [key, each]));
    fill(part.entry, all.map(([key, , name]) => h("option", { value: key, hidden: key === UNKNOWN }, name)));
    part.entry.value = value === undefined ? UNKNOWN : value === null && part.choices.has(MISSING) ? MISSING : String(value);
  }
}

/** The first of many texts, and how many more there are. */
const some = (texts, mark) => `${texts.slice(0, 5).join(mark)}${texts.length > 5 ? ` and ${texts.length - 5} more` : ""}`;
