// Rows of a model's features: what a form begins with, what an address or a file brings.

import { parseNumber } from "./parse.js";

const MISSING = new Set(["", "na", "n/a", "nan", "null", "none", "?"]);

/** The fields of an instance: its features, and inputs of one value that are not explained. */
export function fields(model) {
  const plain = model.inputs
    .filter((input) => !input.features && isOne(input))
    .map((input) => ({ name: input.name, input: input.name, kind: kindOf(input.datatype), missing: false, integer: /INT/.test(input.datatype), whole: /INT/.test(input.datatype) }));
  return [...model.features, ...plain];
}

/** Those of `:decide`: what only knock-outs look at comes too, and may be unknown. */
export const decisionFields = (model) => [...fields(model), ...model.decision.decision_only_features];

/** Whether only a knock-out looks at a feature. */
export const isDecisionOnly = (field) => field.input === undefined;

/** Inputs that no form can fill in: arrays. */
export const arrays = (model) => model.inputs.filter((input) => !input.features && !isOne(input));

const isOne = (input) => input.shape.every((size) => size === 1);
const kindOf = (datatype) => (datatype === "BYTES" ? "text" : datatype === "BOOL" ? "flag" : "number");

/** A typical row of these fields: the references' medians and most frequent words. */
export const typical = (fields) => Object.fromEntries(fields.map((field) => [field.name, middle(field)]));

function middle(field) {
  if (isDecisionOnly(field)) return null;
  if (field.kind === "flag") return false;
  if (field.kind === "text") return field.categories?.[0]?.value ?? Object.keys(field.value_labels ?? {})[0] ?? "";
  if (field.missing && field.missing_share > 0.5) return null;
  if (field.quantiles) return field.quantiles[Math.floor(field.quantiles.length / 2)];
  if (field.value_labels) return Number(Object.keys(field.value_labels)[0]);
  const [least, most] = [field.least ?? 0, field.most ?? field.least ?? 0];
  return field.whole ? Math.round((least + most) / 2) : (least + most) / 2;
}

/**
 * The row of an address: a typical one where it has none. Of a row that is there, nothing is made up: a value that is
 * missing or of another kind is left out, and whoever reads the row asks `lacking`.
 */
export function read(fields, text) {
  if (!text) return typical(fields);
  let given = null;
  try {
    given = JSON.parse(text);
  } catch {
    // cut on its way
  }
  const row = {};
  if (given === null || typeof given !== "object") return row;
  for (const field of fields) {
    if (Object.hasOwn(given, field.name) && fits(field, given[field.name])) put(row, field.name, given[field.name]);
  }
  return row;
}

/** The fields of which a row has no value. */
export const lacking = (fields, row) => fields.filter(({ name }) => !Object.hasOwn(row, name));

export const written = (row) => JSON.stringify(row);

/** Set a member, whatever it is called: "__proto__" is a name like any other. */
export function put(row, name, value) {
  Object.defineProperty(row, name, { value, writable: true, enumerable: true, configurable: true });
  return row;
}

/** The row with another value; undefined takes it away. */
export function changed(row, name, value) {
  const others = Object.entries(row).filter(([each]) => each !== name || value !== undefined);
  const next = Object.fromEntries(others);
  return value === undefined ? next : put(next, name, value);
}

export function fits(field, value) {
  if (value === null) return field.missing;
  if (field.kind === "number") return typeof value === "number" && Number.isFinite(value);
  return typeof value === (field.kind === "text" ? "string" : "boolean");
}

/** The value that a text stands for; `unseen`: nobody sees how it was read. Throws an Error that names the feature. */
export function parsed(field, text, unseen = false) {
  const word = String(text).trim();
  if (field.kind === "text") return String(text);
  if (MISSING.has(word.toLowerCase())) {
    if (field.missing) return null;
    throw new Error(`${field.title ?? field.name}: a value is missing, which the model does not take`);
  }
  if (field.kind === "flag") {
    if (/^(true|yes|1)$/i.test(word)) return true;
    if (/^(false|no|0)$/i.test(word)) return false;
    throw new Error(`${field.title ?? field.name}: '${word.slice(0, 40)}' is neither true nor false`);
  }
  try {
    const value = parseNumber(word, { unseen });
    if (field.integer && !Number.isInteger(value)) throw new Error("a whole number is needed");
    return value;
  } catch (error) {
    throw new Error(`${field.title ?? field.name}: ${error.message}`);
  }
}

/** One row of a table of texts, by its columns' names; throws an Error that names what is missing. */
export function ofTable(fields, columns, texts) {
  const row = {};
  const absent = fields.filter((field) => !columns.includes(field.name));
  if (absent.length) throw new Error(`the file has no column ${absent.slice(0, 5).map((one) => one.name).join(", ")}`);
  for (const field of fields) put(row, field.name, parsed(field, texts[columns.indexOf(field.name)], true));
  return row;
}
