// Numbers as people write them: 2700000 · 2,700,000 · 2 700 000 · 2'700'000 · 2.700.000,5 · 0,52 · 1.2e−7.

const PLAIN = /^[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?$/i;
const DECIMAL_COMMA = /^[+-]?\d*,\d+(?:e[+-]?\d+)?$/i;
const EITHER = /^[+-]?[1-9]\d{0,2},\d{3}$/; // one thousand or one and a bit
// Groups of three digits, and what stands before decimals beside that mark.
const GROUPED = [
  [/^[+-]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d*)?$/, /,/g],
  [/^[+-]?[1-9]\d{0,2}(?:\.\d{3})+(?:,\d*)?$/, /\./g],
  [/^[+-]?[1-9]\d{0,2}(?:[ '’\u00a0\u2009\u202f]\d{3})+(?:[.,]\d*)?$/, /[ '’\u00a0\u2009\u202f]/g],
];

/**
 * The number that a text stands for. Throws an Error whose message says how to write it.
 * `unseen`: nobody sees how it was read, as of a file: "1,234", which may be 1234 or 1.234, is refused then.
 * `share`: "20%" is 0.2.
 */
export function parseNumber(text, { unseen = false, share = false } = {}) {
  const given = String(text).trim();
  const isPercent = share && given.endsWith("%");
  const written = plainMinus(isPercent ? given.slice(0, -1).trimEnd() : given);
  const told = `'${given.slice(0, 40)}'`;
  if (unseen && EITHER.test(written)) {
    throw new Error(`${told} may be ${written.replace(",", "")} or ${written.replace(",", ".")}: write a point before decimals, and nothing between thousands`);
  }
  const plain = ungrouped(written);
  if (plain === null) throw new Error(`${told} is no number: write digits, and a point before decimals, such as 1234.5`);
  const value = Number(plain) / (isPercent ? 100 : 1);
  if (!Number.isFinite(value)) throw new Error(`${told} is too large a number`);
  return value;
}

/**
 * The numbers of a column of a file, whose texts all have the same mark before decimals: a text that has two readings by
 * itself is read by the mark of the others. `read(text)` returns the number, null of what is none, and undefined as long
 * as it has two readings.
 */
export class ColumnReader {
  #mark = "";

  read(text) {
    const given = text.trim();
    const written = PLAIN.test(given) ? given : plainMinus(given); // most by far: seconds of a large file
    if (EITHER.test(written)) return this.#mark ? Number(written.replace(",", this.#mark === "," ? "." : "")) : undefined;
    const plain = ungrouped(written);
    if (plain === null) return null;
    const mark = markOf(written, plain);
    if (mark && this.#mark && mark !== this.#mark) return null;
    this.#mark ||= mark;
    return Number(plain);
  }

  /** A number as the column writes it. */
  written(value) {
    return String(value).replace(".", this.#mark || ".");
  }
}

/** The mark before decimals that a number tells, or that which it cannot be, since the other one groups; "" of neither. */
function markOf(written, plain) {
  if (written === plain) return plain.includes(".") ? "." : "";
  const [last] = written.match(/[.,](?=[^.,]*$)/) ?? [""];
  return plain.includes(".") || !last ? last : last === "," ? "." : ",";
}

const plainMinus = (text) => text.replaceAll(/[−–]/g, "-");

/** The same number as `Number` reads it; null where it is none. */
function ungrouped(written) {
  if (PLAIN.test(written)) return written;
  const marks = GROUPED.find(([pattern]) => pattern.test(written));
  if (marks) return written.replaceAll(marks[1], "").replace(",", ".");
  return DECIMAL_COMMA.test(written) ? written.replace(",", ".") : null;
}
