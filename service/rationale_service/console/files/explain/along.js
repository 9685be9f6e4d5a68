// The score along each feature, others as they are; where it turns; what would have to change.

import * as api from "../api.js";
import { isNearEnds } from "../outcome.js";
import { changed, choicesOf, tidy } from "../values.js";

const POINTS = 21;
const FINER = 8; // parts that an interval in which the score turns is cut into, in each round
const ROUNDS = 3;
const MOST_TOGETHER = 4;
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

/** Of each piece between two splits the value that is nearest to the present one; the present one of its own. */
function pieces(field, [least, most], present) {
  const starts = [least, ...field.splits.filter((split) => least < split && split <= most)];
  return starts.flatMap((start, i) => {
    const end = starts[i + 1] ?? Infinity;
    if (present !== null && start <= present && present < end) return [];
    const value = present === null || start > present ? upFrom(start, end, field.whole) : downFrom(end, start, field.whole);
    return value === null ? [] : [Math.min(value, most)];
  });
}

const DIGITS = [6, 7, 8, 9, 12, 17]; // that a number is written by: the fewest that keep it in its piece

/** The least number of few digits from `start` on and before `end`; null where no whole one is there. */
function upFrom(start, end, whole) {
  if (whole) return Math.ceil(start) < end ? Math.ceil(start) : null;
  return DIGITS.map((digits) => rounded(start, digits, Math.ceil)).find((value) => start <= value && value < end) ?? start;
}

/** The largest number of few digits before `end` and from `start` on; null where no whole one is there. */
function downFrom(end, start, whole) {
  if (whole) return Math.ceil(end) - 1 >= start ? Math.ceil(end) - 1 : null;
  const below = (digits) => {
    const value = rounded(end, digits, Math.floor);
    return value < end ? value : rounded(end - unit(end || end - start, digits), digits, Math.round);
  };
  return DIGITS.map(below).find((value) => start <= value && value < end) ?? start;
}

const unit = (value, digits) => 10 ** (Math.floor(Math.log10(Math.abs(value))) - digits + 1);

function rounded(value, digits, how) {
  if (!value) return 0;
  const one = unit(value, digits);
  return Number((how(value / one) * one).toPrecision(digits));
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

/**
 * Along each of the most relevant features: Map name → {points: [{value, score}], flips: [{value, score, before}]}.
 * A flip is the nearest value on either side at which the rule decides otherwise than about the row itself: one that
 * the model was asked about. `before` is the last value at which it did not.
 */
export async function along({ row, fields, spans, scores, rule, relevance, signal }) {
  const looked = fields.toSorted((a, b) => relevance(b) - relevance(a)).slice(0, MOST_FEATURES);
  const rows = [];
  const tried = looked.flatMap((field) => {
    const values = grid(field, spans.get(field.name), row[field.name]);
    values.forEach((value) => rows.push(changed(row, field.name, value)));
    return values.map((value) => ({ field, value }));
  });
  const [present, ...found] = await scores.of([row, ...rows], signal);
  const result = new Map(looked.map((field) => [field.name, { field, points: [], flips: [] }]));
  tried.forEach(({ field, value }, i) => result.get(field.name).points.push({ value, score: found[i] }));
  if (rule) await flip({ row, result, scores, rule, present, signal });
  return { present, result };
}

async function flip({ row, result, scores, rule, present, signal }) {
  const holds = rule.passes(present);
  const turned = ({ score }) => rule.passes(score) !== holds;
  let open = [];
  for (const [name, { field, points, flips }] of result) {
    if (field.kind !== "number" || field.choices) {
      flips.push(...points.filter(turned));
      continue;
    }
    if (row[name] === null) {
      flips.push(...nearest(points.filter(turned), field.quantiles?.at(10)));
      continue;
    }
    const here = points.findIndex(({ value }) => value === row[name]);
    for (const way of [-1, 1]) {
      let i = here;
      while (points[i] && !turned(points[i])) i += way;
      if (points[i] && field.splits) flips.push({ ...points[i], before: points[i - way].value });
      else if (points[i]) open.push({ field, flips, before: points[i - way], after: points[i], range: points.at(-1).value - points[0].value });
    }
  }
  for (let round = 0; round < ROUNDS && open.length; round += 1) {
    const tried = open.flatMap((one) => between(one).map((value) => ({ one, value })));
    const found = await scores.of(tried.map(({ one, value }) => changed(row, one.field.name, value)), signal);
    for (const one of open) {
      const points = tried.map(({ one: owner, value }, i) => ({ owner, value, score: found[i] })).filter(({ owner }) => owner === one);
      const i = points.findIndex(turned);
      if (i >= 0) one.after = points[i];
      if (i !== 0 && points.length) one.before = points[i < 0 ? points.length - 1 : i - 1];
    }
  }
  for (const { flips, before, after } of open) flips.push({ value: after.value, score: after.score, before: before.value });
}

/** Of values in place of a missing one, that which is nearest to the references' median. */
function nearest(points, median = 0) {
  const far = ({ value }) => Math.abs(value - median);
  return points.length ? [points.reduce((a, b) => (far(b) < far(a) ? b : a))] : [];
}

/**
 * Several features at once: the two, three or four that carry the score farthest by themselves go together from their
 * present values towards those, within the middle nine tenths of the references, until the rule decides otherwise.
 * The fewest features and the shortest way that do, without any that is not needed: {row, score, changed: [{field, value}]};
 * null where none does.
 */
export async function together({ row, result, present, scores, rule, signal }) {
  const way = rule.passes(present) ? -1 : 1;
  const gain = (score) => way * (rule.gain(score) - rule.gain(present));
  const moves = [...result.values()].flatMap(({ field, points }) => {
    const usual = points.filter(({ value }) => isUsual(field, value) || value === row[field.name]);
    const best = usual.reduce((a, b) => (gain(b.score) > gain(a.score) ? b : a), { score: present });
    return gain(best.score) > 0 ? [{ field, value: best.value, gain: gain(best.score) }] : [];
  });
  moves.sort((a, b) => b.gain - a.gain);
  const tried = [];
  for (let count = 2; count <= Math.min(MOST_TOGETHER, moves.length); count += 1) {
    for (let step = 1; step < POINTS; step += 1) {
      const steps = moves.slice(0, count).map(({ field, value }) => ({ field, value: partly(field, row[field.name], value, step / (POINTS - 1)) }));
      tried.push({ changed: steps, row: steps.reduce((whole, { field, value }) => changed(whole, field.name, value), row) });
    }
  }
  const found = await scores.of(tried.map((one) => one.row), signal);
  const turns = (score) => rule.passes(score) !== rule.passes(present);
  const i = found.findIndex(turns);
  return i < 0 ? null : fewest({ row, whole: { ...tried[i], score: found[i] }, scores, turns, signal });
}

/** Of all parts of a change, a least one that turns the decision too: no change in it can be left out. */
async function fewest({ row, whole, scores, turns, signal }) {
  const moved = whole.changed.filter(({ field, value }) => value !== row[field.name]);
  const masks = Array.from({ length: 2 ** moved.length - 2 }, (_, i) => i + 1);
  const parts = masks.map((mask) => moved.filter((_, k) => mask & (1 << k))).sort((a, b) => a.length - b.length);
  const rows = parts.map((part) => part.reduce((all, { field, value }) => changed(all, field.name, value), row));
  const found = await scores.of(rows, signal);
  const i = found.findIndex(turns);
  return i < 0 ? { ...whole, changed: moved } : { row: rows[i], score: found[i], changed: parts[i] };
}

function isUsual(field, value) {
  if (!field.quantiles || typeof value !== "number") return true;
  return field.quantiles.at(1) <= value && value <= field.quantiles.at(-2);
}

/** A part of the way from one value to another; words and codes are there at once. */
function partly(field, from, to, share) {
  if (typeof from !== "number" || typeof to !== "number" || field.choices) return to;
  return tidy(from + share * (to - from), field, field.whole ? 1 : Math.abs(to - from));
}

/** Values from the last that did not turn to the first that did, both left out. */
function between({ field, before, after, range }) {
  const step = (after.value - before.value) / FINER;
  const fine = field.whole ? 1 : range / 10;
  const values = Array.from({ length: FINER - 1 }, (_, i) => tidy(before.value + (i + 1) * step, field, fine));
  return [...new Set(values)].filter((value) => value !== before.value && value !== after.value);
}
