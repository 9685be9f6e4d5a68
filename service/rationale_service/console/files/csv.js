// CSV as it streams in: comma, semicolon, tab or bar between fields, quotes as RFC 4180 has them.

const QUOTE = 34;
const LF = 10;
const CR = 13;
const LONGEST_RECORD = 1 << 20;

/** What is wrong with a file or a table, in words for its owner. */
export class Fault extends Error {}

/** Read a file (a Blob) whose first line names its columns.
 *
 * `begin(names)` returns a function that takes the texts of each row, and wants no more where it returns false.
 * `progress(rows)` is called with the rows so far.
 */
export async function readRows(file, begin, progress = () => {}) {
  const parser = new Parser(begin);
  const stream = file.stream().getReader();
  const decoder = new TextDecoder("utf-8", { fatal: true }); // which takes a byte order mark away
  try {
    for (;;) {
      const { done, value } = await stream.read();
      parser.push(decoded(decoder, value, done), done);
      progress(parser.rows);
      if (done || parser.isDone) break;
    }
  } finally {
    stream.cancel().catch(() => {});
  }
  if (parser.names === null) throw new Fault("The file is empty: its first line has to name the columns.");
  if (parser.rows === 0) throw new Fault("The file holds a header and no rows.");
}

export function checkNames(names) {
  const seen = new Set();
  for (const name of names) {
    if (seen.has(name)) throw new Fault(`Two columns are called "${name}": rename one of them.`);
    seen.add(name);
  }
}

function decoded(decoder, bytes, isLast) {
  try {
    return decoder.decode(bytes, { stream: !isLast });
  } catch {
    throw new Fault("The file is not UTF-8 text: save it as CSV in UTF-8.");
  }
}

class Parser {
  constructor(begin) {
    this.begin = begin;
    this.names = null;
    this.take = null;
    this.rows = 0;
    this.isDone = false;
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
    while (at < text.length && !this.isDone) {
      const next = this.record(text, at, isLast);
      if (next < 0) break;
      at = next;
    }
    this.keep(text, at);
  }

  keep(text, at) {
    this.rest = text.slice(at);
    if (this.rest.length > LONGEST_RECORD && !this.isDone) {
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
        field = text.slice(at + 1, end).replaceAll('""', '"');
        lines += field.split("\n").length - 1;
        at = end + 1;
        if (at < text.length && !this.isEnd(text, at)) {
          throw new Fault(`Line ${this.line}: text after a closing quote.`);
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
      this.add(fields);
      this.line += 1 + lines;
      return at;
    }
  }

  isEnd(text, at) {
    const code = text.charCodeAt(at);
    return code === this.delimiter || code === LF || code === CR;
  }

  add(fields) {
    if (fields.length === 1 && fields[0] === "") return; // a blank line
    if (this.names === null) {
      checkNames(fields);
      this.names = fields;
      this.take = this.begin(fields);
      return;
    }
    const { length } = this.names;
    if (fields.length !== length) {
      throw new Fault(`Line ${this.line} has ${fields.length} fields, and the first line ${length}.`);
    }
    this.isDone = this.take(fields) === false;
    if (!this.isDone) this.rows++;
  }
}

function delimiterOf(header) {
  const bare = header.replace(/"[^"]*"/g, "");
  const counts = [",", ";", "\t", "|"].map((mark) => [bare.split(mark).length, mark]);
  counts.sort((a, b) => b[0] - a[0]);
  return counts[0][1].charCodeAt(0);
}
