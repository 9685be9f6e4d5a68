// Values of a feature, by its field of a form (compiler/rationale/schema/form.py): how they are chosen, called and read;
// and rows of such values, by the features' names.

import { formatted } from "./format.js";
import { parseNumber } from "./parse.js";

const STEPS = 200; // of a slider
const MISSING = new Set(["", "na", "n/a", "nan", "null", "none", "?"]);

export const titleOf = (field) => field.title ?? field.name;

/** The values to choose from, and the present one; null if any may be written. */
export function choicesOf({ choices }, present = null) {
  return choices ? [...new Set(present === null ? choices : [...choices, present])] : null;
}

/** A value as people call it; `write` writes one without a label. */
export function labelOf({ value_labels: labels }, value, write = formatted) {
  return labels && Object.hasOwn(labels, String(value)) ? labels[String(value)] : write(value);
}

/** And with its unit. */
export const shownOf = (field, value, write = formatted) => `${labelOf(field, value, write)}${field.unit && value !== null ? ` ${field.unit}` : ""}`;

/** The value that a text stands for; `unseen`: nobody sees how it was read. Throws an Error that names the feature. */
export function parsed(field, text, unseen = false) {
  const word = String(text).trim();
  if (field.kind === "text") return field.missing && text === "" ? null : String(text);
  if (MISSING.has(word.toLowerCase())) {
    if (field.missing) return null;
    throw new Error(`${titleOf(field)}: a value is missing, which the model does not take`);
  }
  if (field.kind === "flag") {
    if (/^(true|yes|1)$/i.test(word)) return true;
    if (/^(false|no|0)$/i.test(word)) return false;
    throw new Error(`${titleOf(field)}: '${word.slice(0, 40)}' is neither true nor false`);
  }
  try {
    const value = parseNumber(word, { unseen });
    if (field.integer && !Number.isInteger(value)) throw new Error("a whole number is needed");
    return value;
  } catch (error) {
    throw new Error(`${titleOf(field)}: ${error.message}`);
  }
}

/** The step of a slider over a range. */
export const stepOf = (field, range) => (field.whole && range <= STEPS ? "1" : "any");

/** A number without digits that a hand on a slider of that range could not choose. */
export function tidy(value, field, range) {
  const step = field.whole ? Math.max(1, 10 ** Math.floor(Math.log10(range / STEPS || 1))) : 0;
  if (step) return Math.round(value / step) * step;
  const digits = Math.max(0, 2 - Math.floor(Math.log10(range || 1)));
  return Number(value.toFixed(Math.min(digits, 12)));
}

/** A typical row of these fields: the references' medians and most frequent words. */
export const typical = (fields) => Object.fromEntries(fields.map((field) => [field.name, field.begin ?? null]));

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
