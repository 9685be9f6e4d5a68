// The fields of a row: each by its name, unit and range, with a slider over the references' range.

import { fill, h } from "../dom.js";
import { number, formatted } from "../format.js";
import { curve, draw } from "../pictures/curve.js";
import { changed, parsed } from "../rows.js";
import { outline, tidy, words } from "./along.js";

const STEPS = 200; // of a slider

export class Form {
  spans = new Map(); // of sliders, by feature
  #fields = new Map();

  /** `moved(row)` is called with each new row, also while a slider moves. */
  constructor(fields, row, moved) {
    Object.assign(this, { fields, row, moved });
    this.element = h("div", { class: "fields" }, fields.map((field, i) => this.#made(field, `field-${i}`)));
    this.set(row);
  }

  /** Take another row whole. */
  set(row) {
    this.row = row;
    for (const field of this.fields) this.#shown(field, row[field.name]);
  }

  /** Draw the score along each slider, and where it turns. */
  paint({ result }, rule) {
    const curves = [...result.values()];
    const all = curves.flatMap(({ points }) => points.map(({ score }) => score));
    if (rule) all.push(rule.threshold);
    const scores = [all.reduce((a, b) => Math.min(a, b), Infinity), all.reduce((a, b) => Math.max(a, b), -Infinity)];
    for (const field of this.fields) {
      const { drawing, turns } = this.#fields.get(field.name);
      const { points = [], flips = [] } = result.get(field.name) ?? {};
      const span = this.spans.get(field.name);
      if (drawing && span) draw(drawing, { points: outline(field, points), span, scores, threshold: rule?.threshold ?? null, flips: flips.map((one) => one.value) });
      const word = (flip) => `${rule.judge(flip.score)} at ${this.called(field, flip.value)}`;
      turns.textContent = rule && flips.length ? `turns to ${flips.map(word).join(", ")}` : "";
    }
  }

  /** A value as people call it. */
  called(field, value) {
    return field.called?.[String(value)] ?? formatted(value);
  }

  #made(field, id) {
    const title = field.title ?? field.name;
    const turns = h("p", { class: "turns", id: `${id}-turns` });
    const part = { turns };
    this.#fields.set(field.name, part);
    const label = h("label", { for: id }, title, h("small", {}, [field.title && field.name, field.unit].filter(Boolean).join(" · ")));
    const take = (value) => this.#take(field, value);
    let controls;
    if (field.kind === "flag") {
      part.entry = h("input", { type: "checkbox", id, onchange: () => take(part.entry.checked) });
      controls = [part.entry];
    } else if (field.categories || field.called) {
      part.entry = h("select", { id, "aria-describedby": turns.id, onchange: () => take(this.#chosen(field, part.entry.value)) });
      controls = [part.entry];
    } else if (field.kind === "text") {
      part.entry = h("input", { id, spellcheck: "false", oninput: () => take(part.entry.value) });
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
    const given = [field.least, field.most].every((end) => end !== undefined);
    part.ends = h("div", { class: "ends" });
    if (given) this.#stretch(field, part, field.least, field.most);
    return [part.entry, h("div", { class: "slide" }, part.drawing, part.slider, part.ends)];
  }

  /** Give the slider these ends. */
  #stretch(field, part, least, most) {
    const span = least < most ? [least, most] : [least - 1, most + 1];
    this.spans.set(field.name, span);
    const steps = field.whole && span[1] - span[0] <= STEPS;
    Object.assign(part.slider, { min: span[0], max: span[1], step: steps ? "1" : "any" });
    fill(part.ends, h("span", {}, number(span[0])), h("span", {}, number(span[1])));
  }

  #slid(field, part) {
    const [least, most] = this.spans.get(field.name);
    const value = tidy(Number(part.slider.value), field, most - least);
    part.entry.value = value;
    part.slider.setAttribute("aria-valuetext", formatted(value));
    part.last = value;
    if (part.missing) part.missing.checked = false;
    this.#moves(field, value);
  }

  #typed(field, part) {
    try {
      this.#take(field, parsed(field, part.entry.value));
      part.entry.removeAttribute("aria-invalid");
    } catch (error) {
      part.entry.setAttribute("aria-invalid", "true");
      part.turns.textContent = error.message;
    }
  }

  #chosen(field, text) {
    return field.kind === "number" ? Number(text) : text;
  }

  #take(field, value) {
    if (value === undefined) value = this.spans.get(field.name)?.[0] ?? 0;
    this.#shown(field, value);
    this.#moves(field, value);
  }

  #moves(field, value) {
    this.row = changed(this.row, field.name, value);
    this.moved(this.row);
  }

  #shown(field, value) {
    const part = this.#fields.get(field.name);
    if (value !== null) part.last = value;
    if (part.missing) part.missing.checked = value === null;
    part.entry.removeAttribute("aria-invalid");
    if (field.kind === "flag") part.entry.checked = value;
    else if (part.entry.tagName === "SELECT") {
      const option = (each) => h("option", { value: String(each) }, this.called(field, each));
      fill(part.entry, words(field, value).map(option));
      part.entry.value = String(value);
    } else part.entry.value = value ?? "";
    if (!part.slider || value === null) return;
    const [least, most] = this.spans.get(field.name) ?? [value - Math.max(Math.abs(value), 1), value + Math.max(Math.abs(value), 1)];
    if (!this.spans.has(field.name) || value < least || value > most) this.#stretch(field, part, Math.min(least, value), Math.max(most, value));
    part.slider.value = value;
    part.slider.setAttribute("aria-valuetext", formatted(value));
  }
}
