// Rows of a table as OIP's raw tensors, and its answers as columns.
//
// A layout says what the model takes and what explains it:
//   inputs   [{name, datatype, shape, features: [name of a column, …], missing: whether NaN may be sent}]
//   players  [{name, features: [name of a column, …], output, width, at}]: element `at` of `width` in `output`

import { Fault } from "../csv.js";
import { decidedScore } from "../outcome.js";
import { ColumnReader, parseNumber } from "../parse.js";

const KINDS = {
  FP32: Float32Array, FP64: Float64Array, INT8: Int8Array, INT16: Int16Array, INT32: Int32Array,
  UINT8: Uint8Array, UINT16: Uint16Array, UINT32: Uint32Array, BOOL: Uint8Array, INT64: BigInt64Array,
  UINT64: BigUint64Array,
}; // prettier-ignore
const FLOATS = new Set(["FP16", "BF16", "FP32", "FP64"]);
const EXPLAINED = "explained_value";
const LENGTH = "Inference-Header-Content-Length";
const encoder = new TextEncoder();
const decoder = new TextDecoder();

/** Find the columns of a layout in a table, by name. Raises Fault for what is not there or does not fit. */
export function bind(layout, columns) {
  const known = new Map(columns.map((column) => [column.name, column]));
  const missing = layout.inputs.flatMap((input) => input.features).filter((name) => !known.has(name));
  if (missing.length) {
    throw new Fault(
      `The model takes columns that the file lacks: ${quoted(missing)}. The file has ${quoted([...known.keys()])}.`,
    );
  }
  return layout.inputs.map((input) => {
    const own = input.features.map((name) => known.get(name));
    if (input.datatype !== "BYTES") own.forEach((column) => checkNumbers(input, column));
    return { ...input, columns: own };
  });
}

function checkNumbers(input, column) {
  if (column.kind !== "text") return;
  if (input.datatype === "BOOL" && column.words.every((each) => /^(true|false)$/i.test(each))) return;
  const reader = new ColumnReader();
  const read = column.words.map((word) => reader.read(word));
  const odd = Math.max(0, read.includes(null) ? read.indexOf(null) : read.indexOf(undefined));
  const word = column.words[odd].slice(0, 80);
  throw new Fault(`Column "${column.name}" has to hold numbers, and holds "${word}" in row ${column.codes.indexOf(odd) + 1}: ${oddness(word)}.`);
}

/** What is wrong with a text that is no number beside the others of its column. */
function oddness(word) {
  try {
    parseNumber(word, { unseen: true });
    return "other rows have another mark before decimals; write a point there, and nothing between thousands";
  } catch (error) {
    return error.message;
  }
}

/** Return the rows that can be sent, and per column how many rows lack a value that the model needs. */
export function usable(bound, rows) {
  const fine = new Uint8Array(rows).fill(1);
  const lacking = new Map();
  for (const input of bound) {
    const isGap = input.missing && FLOATS.has(input.datatype) ? Number.isNaN : () => false;
    const rounded = input.datatype === "FP32" ? Math.fround : Number; // which may be too large for it
    for (const column of input.columns) {
      let count = 0;
      for (let row = 0; row < rows; row++) {
        const there = column.kind === "text" ? column.codes[row] >= 0 : Number.isFinite(rounded(column.values[row])) || isGap(column.values[row]);
        if (there || (column.kind === "text" && input.datatype === "BYTES")) continue;
        fine[row] = 0;
        count++;
      }
      if (count) lacking.set(column.name, count);
    }
  }
  const kept = new Uint32Array(rows);
  let count = 0;
  for (let row = 0; row < rows; row++) if (fine[row]) kept[count++] = row;
  return { rows: kept.slice(0, count), lacking };
}

/** Encode rows[from … to) as the body of an explain request, and its headers. */
export function encode(bound, rows, from, to, { outputs, parameters }) {
  const count = to - from;
  const inputs = [];
  const parts = [];
  for (const input of bound) {
    const shape = [count, ...input.shape];
    const described = { name: input.name, datatype: input.datatype, shape };
    const raw = rawOf(input, rows, from, to);
    if (raw === null) {
      described.data = numbersOf(input, rows, from, to, Float64Array, Number, Array.from);
    } else {
      described.parameters = { binary_data_size: raw.byteLength };
      parts.push(raw);
    }
    inputs.push(described);
  }
  const named = outputs.map((name) => ({ name }));
  const head = encoder.encode(
    JSON.stringify({ inputs, outputs: named, parameters: { ...parameters, binary_data_output: true } }),
  );
  return { body: new Blob([head, ...parts]), headers: { [LENGTH]: String(head.byteLength), "Content-Type": "application/octet-stream" } };
}

function rawOf(input, rows, from, to) {
  if (input.datatype === "BYTES") return wordsOf(input, rows, from, to);
  const Kind = KINDS[input.datatype];
  if (Kind === undefined) return null;
  const isBig = Kind === BigInt64Array || Kind === BigUint64Array;
  const array = numbersOf(input, rows, from, to, Kind, isBig ? BigInt : Number);
  return new Uint8Array(array.buffer);
}

function numbersOf(input, rows, from, to, Kind, as, make = (array) => array) {
  const width = input.columns.length;
  const found = new Kind((to - from) * width);
  const isWhole = !FLOATS.has(input.datatype);
  input.columns.forEach((column, j) => {
    const isText = column.kind === "text";
    for (let i = from; i < to; i++) {
      const row = rows[i];
      const value = isText ? Number(/^true$/i.test(column.words[column.codes[row]])) : column.values[row];
      if (isWhole && !Number.isInteger(value)) {
        throw new Fault(`Column "${column.name}" has to hold whole numbers, and holds ${value} in row ${row + 1}.`);
      }
      found[(i - from) * width + j] = as(value);
    }
  });
  return make(found);
}

function wordsOf(input, rows, from, to) {
  const encoded = input.columns.map((column) =>
    column.kind === "text" ? column.words.map((word) => encoder.encode(word)) : null,
  );
  const elements = [];
  let size = 0;
  for (let i = from; i < to; i++) {
    input.columns.forEach((column, j) => {
      const code = encoded[j] === null ? -1 : column.codes[rows[i]];
      const bytes = code < 0 ? encoder.encode(encoded[j] === null ? String(column.values[rows[i]]) : "") : encoded[j][code];
      elements.push(bytes);
      size += 4 + bytes.length;
    });
  }
  const raw = new Uint8Array(size);
  const view = new DataView(raw.buffer);
  let at = 0;
  for (const bytes of elements) {
    view.setUint32(at, bytes.length, true);
    raw.set(bytes, at + 4);
    at += 4 + bytes.length;
  }
  return raw;
}

/** Decode an answer: {tensors: name → {shape, datatype, values}, parameters}. */
export async function decode(response) {
  const buffer = await response.arrayBuffer();
  const length = response.headers.get(LENGTH);
  const end = length === null ? buffer.byteLength : Number(length);
  const message = JSON.parse(decoder.decode(new Uint8Array(buffer, 0, end)));
  const tensors = new Map();
  let at = end;
  for (const output of message.outputs) {
    const size = output.parameters?.binary_data_size;
    let values = output.data;
    if (size !== undefined) {
      const bytes = buffer.slice(at, at + size);
      values = floats(output.datatype, bytes);
      at += size;
    }
    tensors.set(output.name, { shape: output.shape, datatype: output.datatype, values });
  }
  return { tensors, parameters: message.parameters ?? {} };
}

function floats(datatype, bytes) {
  if (datatype === "FP16") return Float32Array.from(new Uint16Array(bytes), half);
  if (datatype === "BF16") return Float32Array.from(new Uint16Array(bytes), (bits) => single(bits << 16));
  return new KINDS[datatype](bytes);
}

function half(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 0x1f;
  const fraction = bits & 0x3ff;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

const one = new DataView(new ArrayBuffer(4));
function single(bits) {
  one.setUint32(0, bits);
  return one.getFloat32(0);
}

/** Attributions and scores of the rows that were explained, column by column. */
export class Explained {
  constructor(layout, rows, target) {
    this.players = layout.players;
    this.score = layout.score; // where decisions look, if it is another output than the explained one
    this.target = target;
    this.rows = rows; // of the table
    this.attributions = layout.players.map(() => new Float32Array(rows.length));
    this.values = new Float64Array(rows.length); // explained
    this.scores = new Float64Array(rows.length); // what is held against a threshold
    this.bases = new Float32Array(rows.length).fill(NaN);
    this.gaps = new Float32Array(rows.length).fill(NaN);
    this.count = 0;
    this.parameters = {};
  }

  /** What a request asks for: all that is drawn, and nothing else, such as labels that are words. */
  static outputs(layout) {
    const own = layout.players.map((player) => player.output);
    const score = layout.score === null ? [] : [layout.score.output];
    return [...new Set([...own, EXPLAINED, ...layout.scalars, ...score])];
  }

  /** Take the answer to rows[from …). Batches come in their order, so that `count` are there. */
  take({ tensors, parameters }, from, count) {
    this.parameters = parameters;
    this.players.forEach((player, j) => {
      const { values, shape } = tensors.get(player.output);
      const stride = shape[1] * player.width;
      const start = this.target * player.width + player.at;
      const column = this.attributions[j];
      for (let i = 0; i < count; i++) column[from + i] = values[i * stride + start];
    });
    this.scalar(tensors, EXPLAINED, this.values, from, count);
    this.scalar(tensors, "base_value", this.bases, from, count);
    this.scalar(tensors, "completeness_gap", this.gaps, from, count);
    this.judged(tensors, from, count);
    this.count = from + count;
  }

  judged(tensors, from, count) {
    const { values, shape, datatype } = tensors.get(this.score?.output ?? EXPLAINED);
    const width = shape.slice(1).reduce((product, each) => product * each, 1);
    const index = this.score?.index ?? this.target;
    const margins = tensors.get(this.score?.space === "margin" ? EXPLAINED : this.score?.margin);
    for (let i = 0; i < count; i++) {
      const margin = margins?.values[i * margins.shape[1]];
      const isSingle = datatype === "FP32";
      const answered = values[i * width + index];
      this.scores[from + i] = decidedScore(this.score ?? {}, answered, isSingle, margin, margins?.datatype === "FP32");
    }
  }

  scalar(tensors, name, column, from, count) {
    const tensor = tensors.get(name);
    if (tensor === undefined) return;
    const targets = tensor.shape[1];
    for (let i = 0; i < count; i++) column[from + i] = tensor.values[i * targets + this.target];
  }
}

export function quoted(names, most = 12) {
  const shown = names.slice(0, most).map((name) => `"${name.slice(0, 80)}"`);
  return shown.join(", ") + (names.length > most ? ` and ${names.length - most} more` : "");
}
