// What is told of many rows at once. Columns are typed arrays; `n` says how many of their values are there.

const MOST_SAMPLED = 20_000;
const Z = 1.959963984540054; // of a normal interval of 95%

export function meanAbsolute(column, n) {
  let sum = 0;
  for (let i = 0; i < n; i++) sum += Math.abs(column[i]);
  return n ? sum / n : 0;
}

/** Return the places of the largest first. */
export function descending(values) {
  return Array.from(values.keys()).sort((a, b) => values[b] - values[a] || a - b);
}

/** Return {mean, low, high, n}: the mean of the chosen rows and its normal interval of 95%. */
export function meanInterval(column, rows) {
  const n = rows.length;
  let mean = 0;
  let squares = 0;
  for (let k = 0; k < n; k++) {
    const step = column[rows[k]] - mean;
    mean += step / (k + 1);
    squares += step * (column[rows[k]] - mean);
  }
  const error = n > 1 ? Math.sqrt(squares / (n - 1) / n) : Infinity;
  return { n, mean, error, low: mean - Z * error, high: mean + Z * error };
}

/** Return the difference of two means with its normal interval (Welch's error). */
export function difference(a, b) {
  const error = Math.hypot(a.error, b.error);
  const mean = a.mean - b.mean;
  return { mean, error, low: mean - Z * error, high: mean + Z * error };
}

/** Return `count` values of a column at even steps of its order; NaN is passed over. */
export function quantiles(values, rows, count) {
  const step = Math.max(1, Math.floor(rows.length / MOST_SAMPLED));
  const seen = [];
  for (let k = 0; k < rows.length; k += step) {
    const value = values[rows[k]];
    if (!Number.isNaN(value)) seen.push(value);
  }
  const sorted = Float64Array.from(seen).sort();
  if (!sorted.length) return [];
  return Array.from({ length: count }, (_, i) => sorted[Math.round((i / (count - 1)) * (sorted.length - 1))]);
}

/**
 * Return each row's colour by a column's values: 0 to 254 from its 5th to its 95th percentile; 255 where it
 * has none. Where these are one value, the ends are further out.
 */
export function ranks(values, rows) {
  const steps = quantiles(values, rows, 101);
  const found = new Uint8Array(rows.length).fill(255);
  if (!steps.length) return found;
  const [low, high] = [5, 1, 0].map((k) => [steps[k], steps[100 - k]]).find(([from, to], k) => from < to || k === 2);
  const span = high - low || 1;
  for (let k = 0; k < rows.length; k++) {
    const value = values[rows[k]];
    if (!Number.isNaN(value)) found[k] = Math.round(Math.min(Math.max((value - low) / span, 0), 1) * 254);
  }
  return found;
}

/**
 * Return how strongly each other column goes with what `values` do not explain of `attributions`.
 *
 * Rows are cut into slices along `values`; within a slice the attribution would be one number without
 * interactions. The strength is the mean |correlation| with the other column there, times the spread.
 */
export function interactions(values, attributions, others, rows) {
  const step = Math.max(1, Math.floor(rows.length / 4000));
  const sample = [];
  for (let k = 0; k < rows.length; k += step) if (!Number.isNaN(values[rows[k]])) sample.push(k);
  sample.sort((a, b) => values[rows[a]] - values[rows[b]]);
  const slice = Math.max(Math.min(Math.floor(sample.length / 10), 50), 8);
  return others.map((other) => {
    if (other === null || other === values) return 0;
    let strength = 0;
    for (let from = 0; from + slice <= sample.length; from += slice) {
      strength += Math.abs(covariance(sample, from, from + slice, attributions, other, rows));
    }
    return strength;
  });
}

function covariance(sample, from, to, ys, xs, rows) {
  let x = 0;
  let y = 0;
  let n = 0;
  for (let k = from; k < to; k++) {
    const value = xs[rows[sample[k]]];
    if (Number.isNaN(value)) continue;
    x += value;
    y += ys[sample[k]];
    n++;
  }
  x /= n;
  y /= n;
  let together = 0;
  let spread = 0;
  for (let k = from; k < to; k++) {
    const value = xs[rows[sample[k]]];
    if (Number.isNaN(value)) continue;
    together += (value - x) * (ys[sample[k]] - y);
    spread += (value - x) ** 2;
  }
  return spread > 0 ? together / Math.sqrt(spread) : 0;
}

/**
 * Project rows on their two principal components: {x, y, shares}. Columns are centred, not scaled; of many rows
 * a sample finds the components.
 */
export function principal(columns, n) {
  const width = columns.length;
  const step = Math.max(1, Math.floor(n / MOST_SAMPLED));
  const count = Math.ceil(n / step);
  const means = columns.map((column) => {
    let sum = 0;
    for (let i = 0; i < n; i += step) sum += column[i];
    return sum / count;
  });
  const matrix = columns.map(() => new Float64Array(width));
  for (let a = 0; a < width; a++) {
    for (let b = a; b < width; b++) {
      let sum = 0;
      const [p, q, mp, mq] = [columns[a], columns[b], means[a], means[b]];
      for (let i = 0; i < n; i += step) sum += (p[i] - mp) * (q[i] - mq);
      matrix[a][b] = matrix[b][a] = sum / count;
    }
  }
  const total = matrix.reduce((sum, row, i) => sum + row[i], 0);
  const found = [0, 1].map((k) => {
    const { vector, value } = eigen(matrix, k);
    for (let a = 0; a < width; a++) {
      for (let b = 0; b < width; b++) matrix[a][b] -= value * vector[a] * vector[b];
    }
    const along = new Float32Array(n);
    for (let a = 0; a < width; a++) {
      const [column, mean, weight] = [columns[a], means[a], vector[a]];
      for (let i = 0; i < n; i++) along[i] += weight * (column[i] - mean);
    }
    return { along, share: total > 0 ? Math.max(value, 0) / total : 0 };
  });
  return { x: found[0].along, y: found[1].along, shares: found.map((each) => each.share) };
}

/** Return the largest eigenvalue of a symmetric matrix and its vector, by power iteration. */
function eigen(matrix, seed) {
  const width = matrix.length;
  let vector = Float64Array.from({ length: width }, (_, i) => 1 / (1 + ((i * 7 + seed * 3) % width)));
  let value = 0;
  for (let turn = 0; turn < 500; turn++) {
    const next = matrix.map((row) => row.reduce((sum, each, i) => sum + each * vector[i], 0));
    const length = Math.hypot(...next);
    if (!(length > 0)) return { vector: new Float64Array(width), value: 0 };
    vector = Float64Array.from(next, (each) => each / length);
    if (Math.abs(length - value) <= 1e-10 * length) return { vector: signed(vector), value: length };
    value = length;
  }
  return { vector: signed(vector), value };
}

/** Of the two directions of an axis, take the one whose largest weight is positive: the same each time. */
function signed(vector) {
  const largest = vector.reduce((best, each) => (Math.abs(each) > Math.abs(best) ? each : best), 0);
  return largest < 0 ? vector.map((each) => -each) : vector;
}
