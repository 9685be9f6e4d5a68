// What stands beside pictures, in words.

import { number, formatted as value } from "../format.js";
import { tickText } from "../pictures/canvas.js";

/** A number by the digits that count, however small it is: means of attributions differ by little. */
export function figure(amount, digits = 3) {
  const size = Math.abs(amount);
  if (!Number.isFinite(amount) || size === 0 || size < 1e-4 || size >= 1e15) return number(amount);
  return amount.toLocaleString("en", { maximumSignificantDigits: Math.max(digits, Math.ceil(Math.log10(size))) }).replace("-", "−");
}

/** With its sign, which says that it is a difference. */
export const signed = (amount) => (amount > 0 ? `+${figure(amount)}` : figure(amount));

/**
 * Writers of scores and of effects; of probabilities in percent, whose differences are percentage points: `value`, a
 * number's own text; `effect`, with its sign and `unit`; `signed` and `size`, without the unit; `tick` and `effectTick`, on axes.
 */
export function measures(isShare) {
  const factor = isShare ? 100 : 1;
  const [mark, unit] = isShare ? ["%", "percentage points"] : ["", ""];
  return {
    factor,
    unit,
    value: (amount, digits = 3) => `${figure(amount * factor, digits)}${mark}`,
    effect: (amount) => `${signed(amount * factor)}${isShare ? " points" : ""}`,
    size: (amount, digits = 3) => figure(amount * factor, digits),
    signed: (amount) => signed(amount * factor),
    tick: (amount) => `${tickText(amount * factor)}${mark}`,
    effectTick: (amount) => tickText(amount * factor),
  };
}

/** A row's own value of a column: as it stands in the file. */
export function cell(column, row) {
  if (column.kind === "text") return column.codes[row] < 0 ? value(null) : column.words[column.codes[row]];
  return value(Number.isNaN(column.values[row]) ? null : column.values[row]);
}

/** What a ramp of colours stands for along a column. */
export function orderOf(column) {
  if (column.kind !== "text") return "low to high";
  const shown = column.words.slice(0, 6).join(", ");
  return column.words.length > 6 ? `${shown} …` : shown;
}

/** "income = 24,500: −0.12" */
export function described(portfolio, player, place) {
  const { name } = portfolio.layout.players[player];
  const column = portfolio.values[player];
  const own = column === null ? "" : ` = ${portfolio.valueOf(name, cell(column, portfolio.rows[place]))}`;
  return `${portfolio.titleOf(name)}${own}: ${portfolio.write.effect(portfolio.explained.attributions[player][place])}`;
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
