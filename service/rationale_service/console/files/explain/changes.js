// What would have to change for the decision to turn: one feature at a time, and several at once.

import { h } from "../dom.js";
import { signed } from "../format.js";
import { changed, labelOf, shownOf, titleOf } from "../values.js";

/**
 * `found` from `along`, `several` from `together`; `form` says how far sliders go;
 * `take(row)` puts a row into the form; `figure(score)` writes a score.
 */
export function changes({ found: { present, result }, several, rule, row, form, take, figure }) {
  if (!rule) {
    const how = "Set a threshold above, and this says which one feature would carry the score across it.";
    return [h("h2", {}, "What would have to change"), h("p", { class: "quiet" }, how)];
  }
  const aim = rule.passes(present) ? `anything but ${rule.good}` : rule.good;
  const flips = [...result.values()].flatMap(({ field, flips }) => flips.map((flip) => ({ field, ...flip })));
  flips.sort((a, b) => size(form, row, a) - size(form, row, b));
  const caption =
    `The nearest values that the model was asked about and answers otherwise (threshold ${figure(rule.threshold)}), ` +
    "the smallest steps first. It says what the model does, not what an applicant can do.";
  return [
    h("h2", {}, `What would have to change for ${aim}: one feature at a time`),
    h("p", { class: "quiet" }, caption),
    flips.length
      ? table(flips.map((flip) => line({ flip, rule, row, form, take, figure })))
      : h("p", {}, `No single feature, moved within its range, makes it ${aim}.`),
    h("h3", {}, "Several at once"),
    several
      ? together({ several, rule, row, take, figure })
      : h("p", {}, `No two to four features, moved together within the middle nine tenths of the references, make it ${aim}.`),
  ];
}

/** How large a step is, of the feature's range; one to another word counts as half of it. */
function size(form, row, { field, value }) {
  const span = form.spans.get(field.name);
  return span && typeof value === "number" ? Math.abs(value - row[field.name]) / (span[1] - span[0]) : 0.5;
}

function table(lines) {
  const head = ["Feature", "now", "would be", "score then"].map((name, i) => h("th", { scope: "col", class: i > 2 ? "number" : null }, name));
  const last = h("th", { scope: "col" }, h("span", { class: "unseen" }, "Try it"));
  return h(
    "div",
    { class: "wide", tabindex: "0", role: "region", "aria-label": "What would have to change" },
    h("table", { class: "changes" }, h("thead", {}, h("tr", {}, head, last)), h("tbody", {}, lines)),
  );
}

function line({ flip: { field, value, score }, rule, row, form, take, figure }) {
  const title = titleOf(field);
  const present = row[field.name];
  const isStep = typeof value === "number" && typeof present === "number" && !field.choices;
  const put = () => take(changed(row, field.name, value));
  return h(
    "tr",
    {},
    h("th", { scope: "row" }, title),
    h("td", { "data-name": "now" }, shownOf(field, present)),
    h("td", { "data-name": "would be" }, h("strong", {}, shownOf(field, value)), isStep && h("small", {}, ` (${signed(value - present)})`)),
    h("td", { class: "number", "data-name": "score then" }, figure(score), " ", h("span", { class: "quiet" }, rule.judge(score))),
    h("td", {}, h("button", { type: "button", onclick: put, "aria-label": `Try ${title} ${shownOf(field, value)}` }, "Try")),
  );
}

function together({ several, rule, row, take, figure }) {
  const step = ({ field, value }) => [`${titleOf(field)} ${labelOf(field, row[field.name])} → `, h("strong", {}, shownOf(field, value))];
  const put = () => take(several.row);
  return [
    h("ul", { class: "several" }, several.changed.map((one) => h("li", {}, step(one)))),
    h(
      "p",
      {},
      `Then the score is ${figure(several.score)}: ${rule.judge(several.score)}. `,
      several.changed.length > 1 ? "None of them can be left out. One way of many. " : "This one alone suffices. ",
      h("button", { type: "button", onclick: put, "aria-label": "Try them together" }, "Try"),
    ),
  ];
}
