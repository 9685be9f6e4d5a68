// The explained rows as a file, to go on with elsewhere.

import { h } from "../dom.js";

const AT_ONCE = 5000; // rows of a part of the file

/** Save row, score, base value, each attribution and the completeness gap of every row as CSV. */
export function saveRows(portfolio) {
  const { layout, explained, rows, n, features } = portfolio;
  const names = ["row", "explained_value", "base_value", ...layout.players.map(({ name }) => name), "completeness_gap"];
  const parts = [`${names.map(quoted).join(",")}\n`];
  const columns = [explained.values, explained.bases, ...explained.attributions, explained.gaps];
  for (let from = 0; from < n; from += AT_ONCE) {
    let part = "";
    for (let k = from; k < Math.min(from + AT_ONCE, n); k++) {
      part += `${rows[k]},${columns.map((column) => (Number.isNaN(column[k]) ? "" : column[k])).join(",")}\n`;
    }
    parts.push(part);
  }
  const url = URL.createObjectURL(new Blob(parts, { type: "text/csv" }));
  h("a", { href: url, download: `${features.model}-attributions.csv` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** Quote a name; a spreadsheet takes one that begins with a sign for a formula, so an apostrophe leads it. */
function quoted(name) {
  const safe = /^[=+\-@\t\r]/.test(name) ? `'${name}` : name;
  return `"${safe.replaceAll('"', '""')}"`;
}
