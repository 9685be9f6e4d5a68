// The fields of a row: each by its name, unit and range, with a slider over the references' range.

import { fill, h } from "./dom.js";
import { formatted, number } from "./format.js";
import { MANY, searchAmong } from "./search.js";
import { changed, choicesOf, labelOf, parsed, stepOf, tidy, titleOf } from "./values.js";

const NOT_GIVEN = "\u0000?"; // options that stand for no value
const IS_MISSING = "\u0000";
const UNGIVEN = "no value is given";

export class Form {
  spans = new Map(); // of sliders, by feature
  faults = new Map(); // feature → what is wrong with its value: it is not in `row` then
  parts = new Map(); // elements of a field, by feature: `slider` where it has one, and `note`

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
    return all.length ? `The row is incomplete, so it has no score: ${all.join("; ")}.` : "";
  }

  /** Say something below a field; what is wrong with its value is said instead. */
  note(field, text) {
    this.parts.get(field.name).note.textContent = this.faults.get(field.name) ?? text;
  }

  #made(field, id) {
    const title = titleOf(field);
    const note = h("p", { class: "note", id: `${id}-note` });
    const part = { note };
    this.parts.set(field.name, part);
    const name = title.toLowerCase() !== field.name.toLowerCase() && field.name;
    const label = h("label", { for: id }, title, h("small", {}, [name, field.unit].filter(Boolean).join(" · ")));
    const take = (value) => this.#take(field, value);
    let controls;
    if (field.choices) {
      part.entry = h("select", { id, "aria-describedby": note.id, onchange: () => take(part.choices.get(part.entry.value)) });
      controls = [part.entry];
    } else if (field.kind === "text") {
      part.entry = h("input", { id, spellcheck: "false", "aria-describedby": note.id, oninput: () => take(parsed(field, part.entry.value)) });
      controls = [part.entry];
    } else {
      controls = this.#numbered(field, id, title, part);
    }
    return h("div", { class: `field of-${field.kind}` }, label, controls, note);
  }

  #numbered(field, id, title, part) {
    part.entry = h("input", {
      id,
      type: "text",
      inputmode: "decimal",
      autocomplete: "off",
      "aria-describedby": part.note.id,
      onchange: () => this.#typed(field, part),
      onkeydown: (event) => {
        if (event.key !== "Enter") return;
        event.preventDefault(); // a form would be sent
        this.#typed(field, part);
      },
    });
    part.slider = h("input", {
      id: `${id}-slider`,
      type: "range",
      step: "any",
      "aria-label": `${title}, slider`,
      "aria-describedby": part.note.id,
      oninput: () => this.#slid(field, part),
    });
    part.missing = field.missing && h("input", { type: "checkbox", onchange: () => this.#take(field, part.missing.checked ? null : part.last) });
    part.ends = [h("span", {}), h("span", { class: "beyond" }), h("span", {})];
    part.isGiven = [field.least, field.most].every((end) => end !== undefined);
    if (part.isGiven) this.#stretch(field, part, field.least, field.most);
    return [part.entry, h("div", { class: "slide" }, part.slider, h("div", { class: "ends" }, part.ends[0], part.missing && h("label", {}, part.missing, "missing"), part.ends.slice(1)))];
  }

  /** Give the slider these ends. */
  #stretch(field, part, least, most) {
    const span = least < most ? [least, most] : [least - 1, most + 1];
    this.spans.set(field.name, span);
    Object.assign(part.slider, { min: span[0], max: span[1], step: stepOf(field, span[1] - span[0]) });
    [part.ends[0].textContent, part.ends[2].textContent] = span.map((end) => number(end, 4, "min2"));
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
    part.note.textContent = message;
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
    const part = this.parts.get(field.name);
    if (value !== null && value !== undefined) part.last = value;
    if (part.missing) part.missing.checked = value === null;
    part.entry.removeAttribute("aria-invalid");
    if (this.faults.delete(field.name)) part.note.textContent = "";
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
    part.ends[1].textContent = value < least || value > most ? "beyond this range" : "";
  }

  #choices(field, part, value) {
    const known = choicesOf(field, value ?? null);
    const special = [...(value === undefined ? [[NOT_GIVEN, undefined, "choose …"]] : []), ...(field.missing ? [[IS_MISSING, null, "missing"]] : [])];
    const all = [...special, ...known.map((each) => [String(each), each, labelOf(field, each)])];
    part.choices = new Map(all.map(([key, each]) => [key, each]));
    fill(part.entry, all.map(([key, , name]) => h("option", { value: key, hidden: key === NOT_GIVEN }, name)));
    part.entry.value = value === undefined ? NOT_GIVEN : value === null ? IS_MISSING : String(value);
  }
}

/** The first of many texts, and how many more there are. */
const some = (texts, mark) => `${texts.slice(0, 5).join(mark)}${texts.length > 5 ? ` and ${texts.length - 5} more` : ""}`;
