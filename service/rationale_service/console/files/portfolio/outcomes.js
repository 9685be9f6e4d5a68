// Scores beside what became of the rows: rates at a threshold, and where the model errs.

import { number } from "../format.js";
import { outcomeOf } from "../outcome.js";
import { quantiles } from "./statistics.js";

const Z = 1.959963984540054;
const ONCE = 0.9; // of the rows, from which on values are names of rows
const FEWEST = 50; // rows of a slice that is told of
export const MOST_KINDS = 12; // of a number that is a code: each is a slice of its own

/** Return whether values hold two kinds of outcomes: {good, bad} as the column writes them, or null. */
export function outcomeKinds(column, rows) {
  const seen = new Set();
  for (const row of rows) {
    const value = column.kind === "text" ? column.codes[row] : column.values[row];
    if (column.kind === "text" ? value >= 0 : !Number.isNaN(value)) seen.add(value);
    if (seen.size > 2) return null;
  }
  if (seen.size !== 2) return null;
  const kinds = [...seen].sort((a, b) => a - b);
  return column.kind === "text" ? kinds.map((code) => column.words[code]) : kinds.map(String);
}

/** Return 1 where a row's outcome is `bad`, 0 where it is the other, NaN where there is none. */
export function outcomesOf(column, rows, bad) {
  return Float32Array.from(rows, (row) => {
    if (column.kind === "text") return column.codes[row] < 0 ? NaN : Number(column.words[column.codes[row]] === bad);
    return Number.isNaN(column.values[row]) ? NaN : Number(String(column.values[row]) === bad);
  });
}

/** Scores and outcomes of a group, sorted once, so that any threshold is answered by a few look-ups. */
export class Rates {
  constructor(scores, outcomes, members) {
    const known = members.filter((k) => !Number.isNaN(outcomes[k]));
    known.sort((a, b) => scores[a] - scores[b]);
    this.scores = Float64Array.from(known, (k) => scores[k]);
    this.bad = new Float64Array(known.length + 1);
    for (let i = 0; i < known.length; i++) this.bad[i + 1] = this.bad[i] + outcomes[known[i]];
    this.n = known.length;
  }

  /** Return how many rows a rule (threshold, adverse, refer) approves, refers and declines, and what that costs. */
  at(rule, costs) {
    const { n, bad } = this;
    const counts = { approve: 0, refer: 0, decline: 0 };
    const defaults = { approve: 0, refer: 0, decline: 0 };
    const ends = [rule.threshold, ...(rule.refer ?? [])].flatMap((end) => [this.#before(end), this.#before(end, true)]);
    const cuts = [...new Set([0, n, ...ends])].sort((a, b) => a - b);
    cuts.slice(0, -1).forEach((from, i) => {
      const outcome = outcomeOf(rule, this.scores[from]); // from one cut to the next it is the same
      counts[outcome] += cuts[i + 1] - from;
      defaults[outcome] += bad[cuts[i + 1]] - bad[from];
    });
    const cost = defaults.approve * costs.bad + (counts.decline - defaults.decline) * costs.good;
    return {
      n,
      counts,
      defaults,
      approval: rate(counts.approve, n),
      defaulted: rate(defaults.approve, counts.approve),
      cost: n ? cost / n : NaN,
    };
  }

  /** Count the scores before a number, or up to it. */
  #before(number, isUpTo = false) {
    let low = 0;
    let high = this.n;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (isUpTo ? this.scores[middle] <= number : this.scores[middle] < number) low = middle + 1;
      else high = middle;
    }
    return low;
  }
}

/**
 * Return the ROC curve of scores by which the bad are declined: points [[good declined, bad declined], …] as shares, one
 * for each different score, and the area below them; equal scores count by half.
 */
export function roc({ n, scores, bad }, adverse) {
  const [allBad, allGood] = [bad[n], n - bad[n]];
  const points = [[0, 0]];
  let area = 0;
  for (let done = 0; done < n; ) {
    let next = done + 1;
    const value = (k) => scores[adverse === "above" ? n - 1 - k : k];
    while (next < n && value(next) === value(done)) next++;
    const caught = adverse === "above" ? bad[n] - bad[n - next] : bad[next];
    const point = [allGood ? (next - caught) / allGood : NaN, allBad ? caught / allBad : NaN];
    const last = points.at(-1);
    area += ((point[0] - last[0]) * (point[1] + last[1])) / 2;
    points.push(point);
    done = next;
  }
  return { points: thinned(points.filter(([x, y]) => !Number.isNaN(x + y))), area };
}

const MOST_POINTS = 500;

function thinned(points) {
  const step = Math.ceil(points.length / MOST_POINTS);
  return points.filter((_, i) => i % step === 0 || i === points.length - 1);
}

/** Return tenths of the rows by their scores, equal ones together: {n, x: mean score, y, low, high}; none of other scores. */
export function calibration({ n, scores, bad }, adverse, bins = 10) {
  if (!n || scores[0] < 0 || scores[n - 1] > 1) return [];
  const found = [];
  for (let from = 0; from < n; ) {
    let to = Math.max(Math.round(((found.length + 1) * n) / bins), from + 1);
    while (to < n && scores[to] === scores[to - 1]) to++;
    const count = bad[to] - bad[from];
    const { share, low, high } = rate(adverse === "above" ? count : to - from - count, to - from);
    const x = scores.subarray(from, to).reduce((sum, score) => sum + score, 0) / (to - from);
    found.push({ n: to - from, x, y: share, low, high });
    from = to;
  }
  return found;
}

/** Return a share with Wilson's interval of 95%. */
export function rate(part, whole) {
  if (!whole) return { share: NaN, low: NaN, high: NaN };
  const share = part / whole;
  const shrink = 1 + Z ** 2 / whole;
  const middle = (share + Z ** 2 / (2 * whole)) / shrink;
  const half = (Z / shrink) * Math.sqrt((share * (1 - share)) / whole + Z ** 2 / (4 * whole ** 2));
  return { share, low: Math.max(middle - half, 0), high: Math.min(middle + half, 1) };
}

/**
 * Return slices of single columns in which outcomes and scores differ by more than chance, the surest first.
 * `rest()` is awaited between columns, so that the page stays awake.
 */
export async function errors(columns, rows, scores, outcomes, rest) {
  const found = [];
  for (const column of columns) {
    await rest();
    const { groups, labels } = cut(column, rows);
    const [n, outcome, score, squares] = Array.from({ length: 4 }, () => new Float64Array(labels.length));
    for (let k = 0; k < rows.length; k++) {
      if (Number.isNaN(outcomes[k])) continue;
      const group = groups[k];
      const error = outcomes[k] - scores[k];
      n[group]++;
      outcome[group] += outcomes[k];
      score[group] += scores[k];
      squares[group] += error * error;
    }
    labels.forEach((label, group) => {
      if (n[group] < FEWEST) return;
      const mean = (outcome[group] - score[group]) / n[group];
      const error = Math.sqrt(Math.max(squares[group] / n[group] - mean ** 2, 0) / n[group]);
      const [low, high] = [mean - Z * error, mean + Z * error];
      if (low <= 0 && high >= 0) return;
      found.push({
        column: column.name, label, n: n[group], outcome: outcome[group] / n[group], score: score[group] / n[group],
        mean, low, high, sure: error > 0 ? Math.abs(mean) / error : Infinity,
      }); // prettier-ignore
    });
  }
  return found.sort((a, b) => b.sure - a.sure);
}

/** Return how many kinds of values a column has; of more than `most` it says most + 1. */
export function kindsOf(column, rows, most = MOST_KINDS) {
  const seen = new Set();
  for (let k = 0; k < rows.length && seen.size <= most; k++) {
    const value = column.kind === "text" ? column.codes[rows[k]] : column.values[rows[k]];
    if (column.kind === "text" ? value >= 0 : !Number.isNaN(value)) seen.add(value);
  }
  return seen.size;
}

/** Whether a column tells rows apart and is no group of them: hardly a word or whole number of it comes twice. */
export function isId(column, rows) {
  const isWhole = column.kind === "text" || rows.every((row) => Number.isNaN(column.values[row]) || Number.isInteger(column.values[row]));
  return isWhole && kindsOf(column, rows, rows.length) > Math.max(MOST_KINDS, rows.length * ONCE);
}

/** Return [label, places] of a column's groups, the largest first; `called(name, text)` says what a kind is called. */
export function slices(column, rows, { most = 12, called = (_, text) => text } = {}) {
  const { groups, labels: kinds } = cut(column, rows);
  const labels = kinds.map((kind) => called(column.name, kind));
  const members = labels.map(() => []);
  for (let k = 0; k < rows.length; k++) members[groups[k]].push(k);
  return labels.map((label, group) => [label, members[group]])
    .filter(([, own]) => own.length).sort((a, b) => b[1].length - a[1].length).slice(0, most); // prettier-ignore
}

/** Cut rows by a column: by its words or few numbers, else at its quartiles. `groups` are places in `labels`. */
function cut(column, rows) {
  const groups = new Int32Array(rows.length);
  if (column.kind === "text") {
    const { codes, words } = column;
    for (let k = 0; k < rows.length; k++) groups[k] = codes[rows[k]] + 1;
    return { groups, labels: [MISSING, ...words] };
  }
  const { values } = column;
  const kinds = new Set();
  for (let k = 0; k < rows.length && kinds.size <= MOST_KINDS; k++) if (!Number.isNaN(values[rows[k]])) kinds.add(values[rows[k]]);
  const areFew = kinds.size <= MOST_KINDS;
  const sorted = [...kinds].sort((a, b) => a - b);
  const bounds = areFew ? sorted : [...new Set(quantiles(values, rows, 5).slice(1, 4))];
  for (let k = 0; k < rows.length; k++) {
    const value = values[rows[k]];
    let at = 0;
    while (at < bounds.length && value > bounds[at]) at++;
    groups[k] = Number.isNaN(value) ? 0 : at + 1;
  }
  const last = bounds.length;
  if (areFew) return { groups, labels: [MISSING, ...bounds.map((value) => number(value, 6))] };
  const between = bounds.slice(1).map((bound, i) => `${number(bounds[i])} to ${number(bound)}`);
  return { groups, labels: [MISSING, `up to ${number(bounds[0])}`, ...between, `above ${number(bounds[last - 1])}`] };
}

const MISSING = "(missing)";
