// The fields of an applicant: the model's features, and what else a knock-out looks at.

import { h } from "./dom.js";
import { number } from "./format.js";
import * as rows from "./rows.js";

export class Applicant {
  /** `written`: a row as JSON, of an address; what it lacks is typical of the references. */
  constructor(model, written) {
    this.fields = [...rows.fields(model), ...(model.decision?.beside ?? [])];
    this.given = rows.read(model, written);
    this.controls = new Map();
    const told = parsed(written);
    for (const field of model.decision?.beside ?? []) {
      const value = Object.hasOwn(told, field.name) && rows.fits(field, told[field.name]) ? told[field.name] : null;
      rows.put(this.given, field.name, value);
    }
  }

  elements() {
    return this.fields.map((field) => {
      const control = makeControl(field, this.given[field.name]);
      this.controls.set(field.name, control);
      const unit = field.unit ? ` (${field.unit})` : "";
      return h("label", { class: "field" }, h("span", {}, `${field.title ?? field.name}${unit}`), control);
    });
  }

  take(row) {
    for (const field of this.fields) {
      if (Object.hasOwn(row, field.name)) this.controls.get(field.name).value = written([row[field.name]].flat(Infinity)[0]);
    }
  }

  /** The row as `:decide` takes it. Throws an Error that names the feature, with `field`, its control. */
  row() {
    const row = {};
    for (const field of this.fields) {
      const control = this.controls.get(field.name);
      control.removeAttribute("aria-invalid");
      try {
        rows.put(row, field.name, rows.parsed(field, control.value));
      } catch (error) {
        control.setAttribute("aria-invalid", "true");
        control.focus();
        throw error;
      }
    }
    return row;
  }
}

function makeControl(field, value) {
  const missing = field.missing ? [["", "missing"]] : [];
  if (field.kind === "flag") return choices(field, [["true", "yes"], ["false", "no"], ...missing], value);
  const called = new Map(Object.entries(field.called ?? {}));
  const known = [...new Set([...called.keys(), ...(field.categories ?? []).map((one) => one.value)])];
  if (known.length && (field.kind === "text" || called.size)) {
    const all = value === null || known.includes(String(value)) ? known : [String(value), ...known];
    return choices(field, [...all.map((one) => [one, called.get(one) ?? one]), ...missing], value);
  }
  const bounds = field.least === undefined || field.most === undefined ? "" : `${number(field.least, 6)} to ${number(field.most, 6)}`;
  return h("input", {
    name: field.name,
    inputmode: field.kind === "number" ? "decimal" : null,
    autocomplete: "off",
    title: bounds,
    value: written(value),
    placeholder: field.missing ? "missing" : bounds,
  });
}

const choices = (field, options, value) =>
  h(
    "select",
    { name: field.name },
    options.map(([one, text]) => h("option", { value: one, selected: one === written(value) }, text)),
  );

/** A number with no more digits than a float has. */
const written = (value) =>
  value === null || value === undefined ? "" : typeof value === "number" ? String(Number(value.toPrecision(7))) : String(value);

function parsed(text) {
  try {
    return JSON.parse(text || "{}") ?? {};
  } catch {
    return {};
  }
}
