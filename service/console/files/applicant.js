// The fields of an applicant, by the names, units, values and ranges that are known of a model's features.

import { h } from "./dom.js";
import { number } from "./format.js";

export class Applicant {
  /** `written`: a row as JSON, of an address; else the middle of the references. */
  constructor(model, written) {
    this.model = model;
    this.items = [...model.features, ...(model.decision?.beside ?? [])];
    this.given = { ...Object.fromEntries(this.items.map((item) => [item.name, middle(item)])), ...read(written) };
    this.controls = new Map();
  }

  fields() {
    return this.items.map((item) => {
      const control = this.control(item, this.given[item.name]);
      this.controls.set(item.name, control);
      const unit = item.unit ? ` (${item.unit})` : "";
      return h("label", { class: "field" }, h("span", {}, `${item.title ?? item.name}${unit}`), control);
    });
  }

  control(item, value) {
    if (item.kind === "flag") return choices([["true", "yes"], ["false", "no"], ...(item.missing ? [["", "missing"]] : [])], value);
    const called = item.called ?? {};
    const known = [...new Set([...Object.keys(called), ...(item.categories ?? []).map((one) => one.value)])];
    if (item.kind === "text" && known.length) {
      const all = known.includes(value) || value === undefined ? known : [value, ...known];
      return choices(all.map((one) => [one, called[one] ?? one]), value);
    }
    const bounds = item.least === undefined ? "" : `${number(item.least, 6)} to ${number(item.most, 6)}`;
    return h("input", {
      name: item.name,
      inputmode: item.kind === "number" ? "decimal" : null,
      autocomplete: "off",
      title: bounds,
      value: value === null || value === undefined ? "" : String(value),
      placeholder: item.missing ? "missing" : bounds,
    });
  }

  take(row) {
    for (const [name, value] of Object.entries(row)) {
      const control = this.controls.get(name);
      if (control) control.value = value === null ? "" : String(Array.isArray(value) ? value[0] : value);
    }
  }

  /** The row as `:decide` takes it. Throws an Error that names the field. */
  row() {
    return Object.fromEntries(this.items.map((item) => [item.name, this.valueOf(item)]));
  }

  valueOf(item) {
    const text = this.controls.get(item.name).value.trim();
    if (text === "") {
      if (item.missing) return null;
      throw new Error(`${item.title ?? item.name}: write a value`);
    }
    if (item.kind === "text") return this.controls.get(item.name).value;
    if (item.kind === "flag") return text === "true";
    const value = Number(text.replace(",", "."));
    if (!Number.isFinite(value)) throw new Error(`${item.title ?? item.name}: “${text}” is no number`);
    return value;
  }
}

function choices(options, value) {
  return h("select", {}, options.map(([one, text]) => h("option", { value: one, selected: one === String(value ?? "") }, text)));
}

/** What is neither high nor low among the references. */
function middle(item) {
  if (item.kind === "flag") return false;
  if (item.kind === "text") return item.categories?.[0]?.value ?? Object.keys(item.called ?? {})[0];
  if (item.quantiles?.length) return Number(item.quantiles[Math.floor(item.quantiles.length / 2)].toPrecision(6));
  return item.missing ? null : item.least ?? 0;
}

function read(written) {
  try {
    const row = JSON.parse(written ?? "");
    return row !== null && typeof row === "object" && !Array.isArray(row) ? row : {};
  } catch {
    return {};
  }
}
