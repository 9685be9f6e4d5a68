// The page proves itself first: it answers the entry's probe rows, and compares with the answers that are due.

import { tensor } from "./graph.js";

/** Return how far the answers are from those that are due, of an output's range, and in which output that is most. */
export async function prove(session, facts) {
  const { rows, inputs, outputs } = facts.probes;
  const types = Object.fromEntries(facts.inputs.map(({ name, type }) => [name, type]));
  const feeds = Object.fromEntries(inputs.map(({ name, shape, data }) => [name, tensor(types[name], data, shape)]));
  if (facts.switch) feeds[facts.switch] = tensor("bool", new Array(rows).fill(true), [rows, 1]);
  const found = await session.run(feeds, outputs.map(({ name }) => name));
  return outputs.map((due) => ({ output: due.name, difference: differenceOf(due, found[due.name].data, rows) }))
    .reduce((worst, each) => (each.difference > worst.difference ? each : worst), { output: "", difference: 0 });
}

/** The largest difference less rounding, over the range; the share that differs of what are no floats. */
export function differenceOf({ data, positions, scale, rounding }, answer, rows) {
  const width = answer.length / rows;
  const places = positions ?? Array.from({ length: width }, (_, i) => i);
  if (places.length * rows !== data.length || places[places.length - 1] >= width) return Infinity;
  const pairs = data.map((due, i) => [due, answer[Math.floor(i / places.length) * width + places[i % places.length]]]);
  if (rounding === null) return pairs.filter(([due, found]) => String(due) !== plain(due, found)).length / pairs.length;
  if (pairs.some(([due, found]) => (due === null) === Number.isFinite(Number(found)))) return Infinity;
  const largest = Math.max(0, ...pairs.filter(([due]) => due !== null).map(([due, found]) => Math.abs(Number(found) - due)));
  return Math.max(largest - rounding, 0) / scale;
}

const plain = (due, found) => String(typeof due === "boolean" ? Boolean(found) : found);
