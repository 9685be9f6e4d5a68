// Columns of a table as they are read: numbers as long as every value is one, else words.

import { Fault } from "../csv.js";
import { ColumnReader } from "../parse.js";

export const MOST_ROWS = 100_000;
const MOST_CELLS = 20_000_000;
const MISSING = new Set(["", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "<NA>"]);

/** A column that grows. `number`: Float64Array, NaN where a value is missing; `text`: codes into words, or -1. */
export class Column {
  constructor(name, isText = false) {
    this.name = name;
    this.length = 0;
    this.values = isText ? null : new Float64Array(1024);
    this.codes = isText ? new Int32Array(1024) : null;
    this.words = [];
    this.known = new Map();
    this.reader = new ColumnReader();
    this.open = new Map(); // texts that have two readings, by their place, until the mark before decimals is known
  }

  add(token) {
    const value = this.values === null ? null : MISSING.has(token) ? NaN : this.reader.read(token);
    if (value === undefined) this.open.set(this.length, token);
    if (value !== null) return this.addNumber(value ?? NaN);
    if (this.values !== null) this.becomeText();
    return this.addWord(token);
  }

  addNumber(value) {
    if (this.values === null) {
      this.addWord(String(value));
      return;
    }
    if (this.length === this.values.length) {
      const longer = new Float64Array(this.length * 2);
      longer.set(this.values);
      this.values = longer;
    }
    this.values[this.length++] = value;
  }

  addWord(word) {
    if (this.length === this.codes.length) {
      const longer = new Int32Array(this.length * 2);
      longer.set(this.codes);
      this.codes = longer;
    }
    this.codes[this.length++] = MISSING.has(word) ? -1 : this.codeOf(word);
  }

  codeOf(word) {
    let code = this.known.get(word);
    if (code === undefined) {
      code = this.words.length;
      this.known.set(word, code);
      this.words.push(word);
    }
    return code;
  }

  becomeText() {
    const before = this.values;
    this.values = null;
    this.codes = new Int32Array(before.length);
    for (let i = 0; i < this.length; i++) {
      const word = this.open.get(i) ?? this.reader.written(before[i]);
      this.codes[i] = Number.isNaN(before[i]) && !this.open.has(i) ? -1 : this.codeOf(word);
    }
  }

  /** Return the column as the page keeps it, and as it can be posted. */
  finished() {
    const read = [...this.open].map(([i, token]) => [i, this.reader.read(token)]);
    if (this.values !== null && read.some(([, value]) => value === undefined)) this.becomeText();
    if (this.values !== null) for (const [i, value] of read) this.values[i] = value;
    return this.values === null
      ? { name: this.name, kind: "text", codes: this.codes.slice(0, this.length), words: this.words }
      : { name: this.name, kind: "number", values: this.values.slice(0, this.length) };
  }
}

/** Make the columns of a header. `texts` names those that are words whatever they look like. */
export function columnsOf(names, texts) {
  if (names.length * MOST_ROWS > MOST_CELLS * 10) {
    throw new Fault(`The table has ${names.length} columns: leave out those that are not needed.`);
  }
  return names.map((name) => new Column(name, texts.has(name)));
}

export function checkSize(columns, rows) {
  if (columns.length * rows > MOST_CELLS) {
    throw new Fault(
      `The table has more than ${MOST_CELLS.toLocaleString("en")} values: leave out columns that are not needed.`,
    );
  }
}

export function textOf(column, row) {
  if (column.kind === "number") {
    const value = column.values[row];
    return Number.isNaN(value) ? "" : String(value);
  }
  return column.codes[row] < 0 ? "" : column.words[column.codes[row]];
}
