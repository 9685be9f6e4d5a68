// What stands beside pictures, in words.

import { number, formatted as value } from "../format.js";

/** A number by the digits that count, however small it is: means of attributions differ by little. */
export function figure(amount, digits = 3) {
  const size = Math.abs(amount);
  if (!Number.isFinite(amount) || size === 0 || size < 1e-4 || size >= 1e15) return number(amount);
  return amount.toLocaleString("en", { maximumSignificantDigits: Math.max(digits, Math.ceil(Math.log10(size))) }).replace("-", "−");
}

/** With its sign, which says that it is a difference. */
export const signed = (amount) => (amount > 0 ? `+${figure(amount)}` : figure(amount));

/** A row's own value of a column: as it stands in the file. */
export function cell(column, row) {
  if (column.kind === "text") return column.codes[row] < 0 ? value(null) : column.words[column.codes[row]];
  return value(Number.isNaN(column.values[row]) ? null : column.values[row]);
}

/** "income = 24,500: −0.12" */
export function described(portfolio, player, place) {
  const { name } = portfolio.layout.players[player];
  const column = portfolio.values[player];
  const own = column === null ? "" : ` = ${portfolio.valueOf(name, cell(column, portfolio.rows[place]))}`;
  return `${portfolio.titleOf(name)}${own}: ${signed(portfolio.explained.attributions[player][place])}`;
}

/** A row as an instance of the API: what the model reads, as the file has it. */
export function instance(portfolio, place) {
  const row = portfolio.rows[place];
  const found = Object.create(null); // a feature may be called __proto__
  for (const input of portfolio.layout.inputs) {
    for (const name of input.features) {
      const column = portfolio.columns.get(name);
      const own = column.kind === "text" ? (column.words[column.codes[row]] ?? "") : column.values[row];
      if (input.datatype === "BYTES") found[name] = String(own);
      else if (input.datatype === "BOOL") found[name] = column.kind === "text" ? /^true$/i.test(own) : Boolean(own);
      else found[name] = Number.isNaN(own) ? null : own;
    }
  }
  return found;
}
