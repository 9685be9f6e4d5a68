// A table of rows and what explains them, as every picture of the page reads it.

import { formatted } from "../format.js";
import { isShare } from "../score.js";
import { Explained } from "./tensors.js";
import { descending, meanAbsolute, ranks } from "./statistics.js";
import { measures } from "./words.js";

/** Make a layout (see tensors.js) of what `/v1/models/NAME/features` answers. */
export function layoutOf(features) {
  const takes = new Map(features.features.map((each) => [each.name, each.missing]));
  const inputs = features.inputs.map((input) => ({
    name: input.name,
    datatype: input.datatype,
    shape: input.shape,
    features: input.features ?? [input.name],
    missing: (input.features ?? []).some((name) => takes.get(name)),
  }));
  const players = [];
  const members = new Map(features.groups.map((group) => [group.name, group.features]));
  const attribute = (output, names) =>
    names.forEach((name, at) =>
      players.push({ name, features: members.get(name) ?? [name], output, width: names.length, at }),
    );
  features.inputs.forEach(({ attributions }, i) => attributions && attribute(attributions, inputs[i].features));
  if (features.group_attributions) attribute(features.group_attributions, features.players);
  const scalars = [features.has_base_value && "base_value", features.has_gap && "completeness_gap"].filter(Boolean);
  const isOutput = features.outputs.some(({ name }) => name === features.decision?.output);
  if (features.decision?.margin) scalars.push(features.decision.margin);
  return { inputs, players, scalars, score: isOutput ? features.decision : null };
}

export class Portfolio {
  constructor({ name, table, layout, rows, target, features, left }) {
    this.name = name; // of the file
    this.table = table;
    this.features = features;
    this.left = left; // how many rows were left out, and why
    this.target = target;
    this.rows = rows; // of the table: a place is an index into these
    this.columns = new Map(table.columns.map((column) => [column.name, column]));
    this.described = new Map([...features.features, ...features.groups].map((each) => [each.name, each]));
    this.write = measures(isShare(features, features.output)); // attributions, and what they add up to
    this.writeScore = layout.score ? measures(isShare(features, layout.score.output)) : this.write;
    this.picked = []; // places
    this.pickedWhy = "";
    this.layout = layout;
    this.explained = new Explained(layout, this.rows, this.target);
    this.values = layout.players.map((player) => valuesOf(player, this.columns));
    this.ranked = layout.players.map(() => null);
  }

  get n() {
    return this.explained.count;
  }

  get isWhole() {
    return this.n === this.rows.length;
  }

  get scores() {
    return this.explained.scores;
  }

  /** A feature, a group or another column as people call it. */
  titleOf(name) {
    return this.described.get(name)?.title ?? name;
  }

  /** A value of it, in the words of the profile if there are some. */
  valueOf(name, text) {
    return this.described.get(name)?.value_labels?.[text] ?? text;
  }

  /** The column of a player as words where the profile has words for its values, in the order of these. */
  inWords(j) {
    const column = this.values[j];
    const labels = this.described.get(column?.name)?.value_labels;
    if (!labels || column.kind === "text") return column;
    const known = [...new Set(column.values)].filter((value) => !Number.isNaN(value)).sort((a, b) => a - b);
    const places = new Map(known.map((value, code) => [value, code]));
    const codes = Int32Array.from(column.values, (value) => places.get(value) ?? -1);
    return { name: column.name, kind: "text", codes, words: known.map((value) => labels[value] ?? formatted(value)) };
  }

  /** The title of a player, by its place. */
  playerTitle(j) {
    return this.titleOf(this.layout.players[j].name);
  }

  /** Return the players' places, the one of the largest mean |attribution| first. */
  order() {
    if (this.orderedAt !== this.n) {
      this.means = this.explained.attributions.map((column) => meanAbsolute(column, this.n));
      this.ordered = descending(this.means);
      this.orderedAt = this.n;
    }
    return this.ordered;
  }

  /** Return the colours of a player's values, 0 (low) to 254 (high), 255 where there is none. */
  ranks(j) {
    const column = this.values[j];
    if (column === null || column.kind === "text") return null;
    this.ranked[j] ??= ranks(column.values, this.rows);
    return this.ranked[j];
  }

  /** Whether the model reads a column of the file. */
  isRead({ name }) {
    return this.layout.inputs.some((input) => input.features.includes(name));
  }

  /** Columns of the file that the model does not read. */
  others() {
    return this.table.columns.filter((column) => !this.isRead(column));
  }
}

/** Return the column that holds a player's own values; null for a group that has no single one. */
export function valuesOf(player, columns) {
  if (player.features.length === 1) return columns.get(player.features[0]) ?? null;
  const members = player.features.map((name) => columns.get(name));
  const rows = (members[0]?.values ?? []).length;
  const codes = new Int32Array(rows);
  for (let row = 0; row < rows; row++) {
    let hot = -1;
    for (let k = 0; k < members.length; k++) {
      const value = members[k]?.values?.[row];
      if (value === 1 && hot < 0) hot = k;
      else if (value !== 0) return null; // no one-hot column
    }
    codes[row] = hot;
  }
  return rows ? { name: player.name, kind: "text", codes, words: shortened(player) } : null;
}

/** Take off the members' names what repeats the group's: housing_own of housing is own. */
function shortened({ name, features }) {
  const isPrefixed = features.every((each) => each.startsWith(name) && each.length > name.length + 1);
  return isPrefixed ? features.map((each) => each.slice(name.length).replace(/^[_=:.\s[-]+|\]$/g, "") || each) : features;
}

/** Rows of a column as numbers, for pictures: codes of words, NaN where there is none. */
export function asNumbers(column) {
  if (column === null) return null;
  if (column.kind === "number") return column.values;
  column.numbers ??= Float64Array.from(column.codes, (code) => (code < 0 ? NaN : code));
  return column.numbers;
}
