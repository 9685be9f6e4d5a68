// CSV as it streams in: comma, semicolon, tab or bar between fields, quotes as RFC 4180 has them.

import { Fault, MOST_ROWS, checkSize, columnsOf } from "./columns.js";

const QUOTE = 34;
const LF = 10;
const CR = 13;
const LONGEST_RECORD = 1 << 20;

/** Read a file (a Blob). `progress` is called with the rows so far. Returns {columns, rows, isCut}. */
export async function readCsv(file, texts, progress) {
  const parser = new Parser(texts);
  const stream = file.stream().getReader();
  const decoder = new TextDecoder("utf-8", { fatal: true });
  try {
    for (;;) {
      const { done, value } = await stream.read();
      parser.push(decoded(decoder, value, done), done);
      progress(parser.rows);
      if (done || parser.isCut) break;
    }
  } finally {
    stream.cancel().catch(() => {});
  }
  if (parser.columns === null) throw new Fault("The file is empty: its first line has to name the columns.");
  if (parser.rows === 0) throw new Fault("The file holds a header and no rows.");
  return { columns: parser.columns.map((column) => column.finished()), rows: parser.rows, isCut: parser.isCut };
}

function decoded(decoder, bytes, isLast) {
  try {
    return decoder.decode(bytes, { stream: !isLast });
  } catch {
    throw new Fault("The file is not UTF-8 text: save it as CSV in UTF-8, or as parquet.");
  }
}

class Parser {
  constructor(texts) {
    this.texts = texts;
    this.columns = null;
    this.rows = 0;
    this.isCut = false;
    this.rest = "";
    this.line = 1;
    this.delimiter = 0;
  }

  push(chunk, isLast) {
    const text = this.rest + chunk;
    if (!this.delimiter) {
      const end = text.indexOf("\n");
      if (end < 0 && !isLast) {
        this.keep(text, 0);
        return;
      }
      this.delimiter = delimiterOf(end < 0 ? text : text.slice(0, end));
    }
    let at = 0;
    while (at < text.length && !this.isCut) {
      const next = this.record(text, at, isLast);
      if (next < 0) break;
      at = next;
    }
    this.keep(text, at);
  }

  keep(text, at) {
    this.rest = text.slice(at);
    if (this.rest.length > LONGEST_RECORD && !this.isCut) {
      throw new Fault(`Line ${this.line}: a line of over a million characters. Does a quote not end?`);
    }
  }

  /** Read one record from `at`; returns where the next begins, or -1 where this one is not whole yet. */
  record(text, at, isLast) {
    const fields = [];
    let lines = 0;
    for (;;) {
      let field;
      if (text.charCodeAt(at) === QUOTE) {
        let end = at + 1;
        for (;;) {
          end = text.indexOf('"', end);
          if (end < 0) {
            if (isLast) throw new Fault(`Line ${this.line}: a quote that does not end.`);
            return -1;
          }
          if (text.charCodeAt(end + 1) !== QUOTE) break;
          end += 2;
        }
        if (end + 1 === text.length && !isLast) return -1;
        field = text.slice(at + 1, end).replaceAll('""', '"');
        lines += field.split("\n").length - 1;
        at = end + 1;
        if (at < text.length && !this.isEnd(text, at)) {
          throw new Fault(`Line ${this.line}: text behind a closing quote.`);
        }
      } else {
        const from = at;
        let code = text.charCodeAt(at);
        while (at < text.length && code !== this.delimiter && code !== LF && code !== CR) {
          code = text.charCodeAt(++at);
        }
        field = text.slice(from, at);
      }
      if (at >= text.length && !isLast) return -1;
      fields.push(field);
      const code = text.charCodeAt(at);
      if (at < text.length && code === this.delimiter) {
        at++;
        continue;
      }
      if (code === CR) {
        if (at + 1 === text.length && !isLast) return -1;
        at += text.charCodeAt(at + 1) === LF ? 2 : 1;
      } else {
        at++;
      }
      this.take(fields);
      this.line += 1 + lines;
      return at;
    }
  }

  isEnd(text, at) {
    const code = text.charCodeAt(at);
    return code === this.delimiter || code === LF || code === CR;
  }

  take(fields) {
    if (fields.length === 1 && fields[0] === "") return; // a blank line
    if (this.columns === null) {
      fields[0] = fields[0].replace(/^\uFEFF/, "");
      this.columns = columnsOf(fields, this.texts);
      return;
    }
    if (this.rows === MOST_ROWS) {
      this.isCut = true;
      return;
    }
    const { columns } = this;
    if (fields.length !== columns.length) {
      throw new Fault(`Line ${this.line} has ${fields.length} fields, and the first line ${columns.length}.`);
    }
    for (let i = 0; i < fields.length; i++) columns[i].add(fields[i]);
    this.rows++;
    if (this.rows % 4096 === 0) checkSize(columns, this.rows);
  }
}

function delimiterOf(header) {
  const bare = header.replace(/"[^"]*"/g, "");
  const counts = [",", ";", "\t", "|"].map((mark) => [bare.split(mark).length, mark]);
  counts.sort((a, b) => b[0] - a[0]);
  return counts[0][1].charCodeAt(0);
}
