// Rows of a model's features: what a form begins with, what an address or a file brings.

import { parsed, put, typical } from "./values.js";

/** The fields of an instance. */
export const fields = (model) => model.features;

/** Those of `:decide`: what only knock-outs look at comes too, and may be unknown. */
export const decisionFields = (model) => [...fields(model), ...model.decision.decision_only_features];

/** Inputs that no form can fill in: arrays. */
export const arrays = (model) => model.inputs.filter((input) => !input.features && !isOne(input));

const isOne = (input) => input.shape.every((size) => size === 1);

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

export function fits(field, value) {
  if (value === null) return field.missing;
  if (field.kind === "number") return typeof value === "number" && Number.isFinite(value);
  return typeof value === (field.kind === "text" ? "string" : "boolean");
}

/** One row of a table of texts, by its columns' names; throws an Error that names what is missing. */
export function ofTable(fields, columns, texts) {
  const row = {};
  const absent = fields.filter((field) => !columns.includes(field.name));
  if (absent.length) throw new Error(`the file has no column ${absent.slice(0, 5).map((one) => one.name).join(", ")}`);
  for (const field of fields) put(row, field.name, parsed(field, texts[columns.indexOf(field.name)], true));
  return row;
}
