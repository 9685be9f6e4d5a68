// Tensors as the Open Inference Protocol has them, raw behind the JSON: a picture costs its bytes and no more.

import * as api from "./api.js";

const LENGTH = "Inference-Header-Content-Length";
const VIEWS = {
  FP64: Float64Array,
  FP32: Float32Array,
  INT64: BigInt64Array,
  INT32: Int32Array,
  INT16: Int16Array,
  INT8: Int8Array,
  UINT64: BigUint64Array,
  UINT32: Uint32Array,
  UINT16: Uint16Array,
  UINT8: Uint8Array,
  BOOL: Uint8Array,
};
const HALVES = { FP16: [toHalf, fromHalf], BF16: [toBrain, fromBrain] };
const TEXT = "BYTES";

/** {name, datatype, shape (with the batch axis), data: numbers or texts}: what the model is asked, and what it answers. */
export const size = (shape) => shape.reduce((product, n) => product * n, 1);

/**
 * v2's explanation of tensors; `inputs` is a list of them, `more` has explainer and reference_set.
 * Returns {outputs: {name: tensor}, parameters}.
 */
export async function explain(model, inputs, more = {}, { signal } = {}) {
  const parts = inputs.map((one) => (one.datatype === TEXT ? null : packed(one)));
  const chosen = Object.fromEntries(Object.entries(more).filter(([, value]) => value));
  const head = new TextEncoder().encode(
    JSON.stringify({
      inputs: inputs.map(({ name, datatype, shape, data }, i) =>
        parts[i] === null
          ? { name, datatype, shape, data }
          : { name, datatype, shape, parameters: { binary_data_size: parts[i].byteLength } },
      ),
      parameters: { ...chosen, binary_data_output: true },
    }),
  );
  const response = await api.send(`v2/models/${encodeURIComponent(model)}/explain`, {
    method: "POST",
    body: new Blob([head, ...parts.filter((part) => part !== null)]),
    headers: { "Content-Type": "application/octet-stream", [LENGTH]: String(head.byteLength) },
    signal,
  });
  return unpacked(await response.arrayBuffer(), response.headers.get(LENGTH));
}

function packed({ datatype, data }) {
  if (datatype in HALVES) return Uint16Array.from(data, HALVES[datatype][0]);
  const View = VIEWS[datatype];
  if (View === undefined) throw new Error(`the datatype ${datatype} is not one that this page can send`);
  return View === BigInt64Array || View === BigUint64Array
    ? View.from(Array.from(data, (value) => BigInt(Math.round(value))))
    : View.from(data);
}

function unpacked(buffer, length) {
  const end = length === null ? buffer.byteLength : Number(length);
  const { outputs, parameters = {} } = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 0, end)));
  let at = end;
  const found = Object.create(null); // by whatever names a model has
  for (const { name, datatype, shape, data, parameters: own = {} } of outputs) {
    const bytes = own.binary_data_size;
    if (bytes === undefined) found[name] = { name, datatype, shape, data: data ?? [] };
    else {
      found[name] = { name, datatype, shape, data: read(datatype, buffer.slice(at, at + bytes)) };
      at += bytes;
    }
  }
  return { outputs: found, parameters };
}

function read(datatype, bytes) {
  if (datatype === TEXT) return texts(bytes);
  if (datatype in HALVES) return Float32Array.from(new Uint16Array(bytes), HALVES[datatype][1]);
  const values = new VIEWS[datatype](bytes);
  return values instanceof BigInt64Array || values instanceof BigUint64Array ? Float64Array.from(values, Number) : values;
}

function texts(bytes) {
  const view = new DataView(bytes);
  const decoder = new TextDecoder();
  const found = [];
  for (let at = 0; at < bytes.byteLength; ) {
    const length = view.getUint32(at, true);
    found.push(decoder.decode(new Uint8Array(bytes, at + 4, length)));
    at += 4 + length;
  }
  return found;
}

// --- half precision --------------------------------------------------------------------------------------

const word = new DataView(new ArrayBuffer(4));

function toHalf(value) {
  word.setFloat32(0, value);
  const bits = word.getUint32(0);
  const sign = (bits >>> 16) & 0x8000;
  const exponent = ((bits >>> 23) & 0xff) - 112;
  const fraction = bits & 0x7fffff;
  if (exponent >= 31) return sign | 0x7c00 | (Number.isNaN(value) ? 1 : 0);
  if (exponent <= 0) return sign | Math.round(Math.abs(value) * 2 ** 24); // so small that it has no leading one
  return sign + (exponent << 10) + ((fraction + 0xfff + ((fraction >>> 13) & 1)) >>> 13);
}

function fromHalf(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >>> 10) & 31;
  const fraction = bits & 0x3ff;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : fraction * 2 ** -24);
}

function toBrain(value) {
  word.setFloat32(0, value);
  const bits = word.getUint32(0);
  return (bits + 0x7fff + ((bits >>> 16) & 1)) >>> 16;
}

function fromBrain(bits) {
  word.setUint32(0, bits << 16);
  return word.getFloat32(0);
}

// --- written by people -----------------------------------------------------------------------------------

/** Values of nested or flat lists, and the lists' lengths. Throws an Error that says what to mend. */
export function flat(given) {
  if (!Array.isArray(given)) return { shape: [], data: [value(given)] };
  const shape = lengths(given);
  const data = given.flat(Infinity).map(value);
  if (data.length !== size(shape)) throw new Error("lists at the same depth differ in their lengths");
  return { shape, data };
}

function lengths(given) {
  const shape = [];
  for (let inner = given; Array.isArray(inner); inner = inner[0]) shape.push(inner.length);
  return shape;
}

function value(given) {
  if (typeof given === "boolean") return Number(given);
  if (given === null) return NaN;
  if (typeof given === "number" || typeof given === "string") return given;
  throw new Error("a list may hold numbers, texts, true, false and null");
}

/** The shape that `count` values have where some lengths are open (-1); null where they fit none. */
export function fitted(shape, given) {
  const count = size(given);
  const open = shape.filter((n) => n < 0).length;
  if (given.length === shape.length && shape.every((n, i) => n < 0 || n === given[i])) return given;
  if (!open) return size(shape) === count ? shape : null;
  const rest = count / size(shape.filter((n) => n >= 0));
  return open === 1 && Number.isInteger(rest) && rest > 0 ? shape.map((n) => (n < 0 ? rest : n)) : null;
}
