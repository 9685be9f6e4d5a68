// The graph, in ONNX Runtime's WebAssembly: values in, a row of its answer out. `ort` stands before this script.

import { decidedScore } from "./outcome.js";

const ARRAYS = {
  float32: Float32Array, float64: Float64Array, bool: Uint8Array, int8: Int8Array, int16: Int16Array, int32: Int32Array,
  int64: BigInt64Array, uint8: Uint8Array, uint16: Uint16Array, uint32: Uint32Array, uint64: BigUint64Array,
};

/** Return the session; the bytes stand in the page, compressed. */
export async function openGraph() {
  ort.env.wasm.numThreads = 1; // more need a server's headers
  ort.env.wasm.proxy = false;
  ort.env.wasm.wasmBinary = await bytesOf("wasm");
  const session = await ort.InferenceSession.create(await bytesOf("graph"), { executionProviders: ["wasm"] });
  for (const id of ["wasm", "graph"]) document.getElementById(id).remove(); // megabytes that nobody needs again
  return session;
}

async function bytesOf(id) {
  const text = atob(document.getElementById(id).textContent);
  const packed = Uint8Array.from(text, (character) => character.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Return a row's answer for each target: score, explained value, base value, gap, attributions by feature or group. */
export async function answer(session, facts, values) {
  const feeds = Object.fromEntries(facts.inputs.map((input) => [input.name, tensorOf(input, facts.fields, values)]));
  if (facts.switch) feeds[facts.switch] = new ort.Tensor("bool", [1], [1, 1]);
  const { explained, base, gap, score, element, margin, classes, others = {} } = facts.outputs;
  const names = [explained, base, gap, score, margin, classes, ...Object.values(others), ...facts.attributed.flatMap(({ output, error, others: own = {} }) => [output, error, ...Object.values(own)])];
  const found = await session.run(feeds, [...new Set(names.filter(Boolean))]);
  const numbers = (name) => (name ? Array.from(found[name].data, Number) : null);
  const of = (name, i) => (name ? numbers(name)[i] : null);
  const judged = (t) => {
    const answered = score === explained ? of(explained, t) : of(score, element);
    const isSingle = (name) => found[name].type === "float32";
    if (!margin) return decidedScore({}, answered, isSingle(score));
    return decidedScore(facts.decided.profile, answered, isSingle(score), of(margin, t), isSingle(margin));
  };
  const scores = numbers(classes);
  const best = scores && scores.indexOf(scores.reduce((a, b) => Math.max(a, b)));
  const kinds = Object.keys(facts.attributed[0]?.others ?? {});
  return facts.targets.map((target, t) => ({
    target: target === "predicted" ? best : target,
    classes: scores,
    score: judged(t),
    explained: of(explained, t),
    base: of(base, t),
    gap: of(gap, t),
    attributions: byKey(facts.attributed, ({ output }) => numbers(output), t),
    errors: byKey(facts.attributed.filter(({ error }) => error), ({ error }) => numbers(error), t),
    others: Object.fromEntries(Object.entries(others).map(([kind, name]) => [kind, of(name, t)])),
    byFeature: Object.fromEntries(kinds.map((kind) => [kind, byKey(facts.attributed, (each) => numbers(each.others[kind]), t)])),
  }));
}

function byKey(attributed, numbersOf, target) {
  return Object.fromEntries(attributed.flatMap((each) => {
    const numbers = numbersOf(each).slice(target * each.keys.length);
    return each.keys.map((key, i) => [key, numbers[i]]);
  }));
}

function tensorOf({ name, type, shape }, fields, values) {
  return tensor(type, fields.filter((field) => field.input === name).map((field) => values[field.name]), shape);
}

/** Return values as a tensor; null is a missing value: NaN, or an empty text. */
export function tensor(type, own, shape) {
  if (type === "string") return new ort.Tensor(type, own.map((value) => value ?? ""), shape);
  const whole = type === "int64" || type === "uint64";
  const numbers = own.map((value) => (whole ? BigInt(value) : value === null ? NaN : Number(value)));
  return new ort.Tensor(type, ARRAYS[type].from(numbers), shape);
}
