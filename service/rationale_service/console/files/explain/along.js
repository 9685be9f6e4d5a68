// The score along each feature, others as they are.

import * as api from "../api.js";
import { isNearEnds } from "../outcome.js";
import { changed, choicesOf, tidy } from "../values.js";

const POINTS = 21;
const MOST_ROWS = 2000; // of one request
const MOST_VALUES = 100_000; // of one request: its body stays within what a gateway takes
const MOST_FEATURES = 48;

/** Scores of rows: by predictions, which cost least, or by explanations where the key or the output asks for it. */
export class Scores {
  #explains = false;

  constructor(model, explainer, score) {
    Object.assign(this, { model, explainer, score });
    this.#explains = !model.outputs.some((one) => one.name === model.output) || Boolean(model.decision && isNearEnds(model.decision));
  }

  async of(rows, signal) {
    const found = [];
    const width = Object.keys(rows[0] ?? {}).length || 1;
    const step = Math.min(MOST_ROWS, Math.ceil(MOST_VALUES / width));
    for (let i = 0; i < rows.length; i += step) found.push(...(await this.#part(rows.slice(i, i + step), signal)));
    return found;
  }

  async #part(rows, signal) {
    if (!this.#explains) {
      try {
        const { predictions } = await api.predict(this.model.model, rows, { signal });
        const scores = predictions.map((one) => this.score(one, null));
        if (scores.every((one) => one !== null)) return scores;
      } catch (error) {
        if (error.status !== 403) throw error; // a key that may explain alone
      }
      this.#explains = true;
    }
    const { predictions, explanations } = await api.explain(this.model.model, rows, { explainer: this.explainer || undefined }, { signal });
    return predictions.map((one, i) => this.score(one, explanations[i]));
  }
}

/**
 * The values that are looked at along a feature: all words; of a number that trees split one between each two splits,
 * which is all there is to see; else the references' quantiles, and even steps of the range.
 */
export function grid(field, span, present) {
  if (field.choices || field.kind === "text") return choicesOf(field, present) ?? [present];
  if (present === null && !span) return [];
  const [least, most] = span;
  const within = (value) => least <= value && value <= most;
  const step = (most - least) / (POINTS - 1);
  const even = () => Array.from({ length: POINTS }, (_, i) => tidy(least + i * step, field, most - least));
  const values = field.splits ? pieces(field, span, present) : [...even(), ...(field.quantiles ?? []).filter(within)];
  if (present !== null) values.push(present);
  return [...new Set(values)].sort((a, b) => a - b);
}

/** The least value of each piece between two splits, where the model takes it; the present one of its own. */
function pieces(field, [least, most], present) {
  const starts = [least, ...field.splits.filter((split) => least < split && split <= most)];
  return starts.flatMap((start, i) => {
    const end = starts[i + 1] ?? Infinity;
    const value = field.whole ? Math.ceil(start) : start;
    const isPresent = present !== null && start <= present && present < end;
    return isPresent || value >= end || value > most ? [] : [value];
  });
}

/** The points of a curve that trees draw over a span: level from one split to the next, and to its ends. */
export function outline({ splits }, points, [least, most]) {
  if (!splits || !points.length) return points;
  const ends = (at, { value, score }, isBeyond) => (isBeyond(value) ? [{ value: at, score }] : []);
  const [before, after] = [ends(least, points[0], (value) => value > least), ends(most, points.at(-1), (value) => value < most)];
  const inner = points.flatMap((point, i) => {
    const edge = i ? splits.findLast((split) => split <= point.value) : undefined;
    return edge === undefined ? [point] : [{ value: edge, score: points[i - 1].score }, { value: edge, score: point.score }, point];
  });
  return [...before, ...inner, ...after];
}

/** The curve along each of the most relevant features: Map name → [{value, score}]. */
export async function along({ row, fields, spans, scores, relevance, signal }) {
  const looked = fields.toSorted((a, b) => relevance(b) - relevance(a)).slice(0, MOST_FEATURES);
  const tried = looked.flatMap((field) => grid(field, spans.get(field.name), row[field.name]).map((value) => ({ name: field.name, value })));
  const found = await scores.of(tried.map(({ name, value }) => changed(row, name, value)), signal);
  const curves = new Map(looked.map(({ name }) => [name, []]));
  tried.forEach(({ name, value }, i) => curves.get(name).push({ value, score: found[i] }));
  return curves;
}
