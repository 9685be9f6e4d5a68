// What would have changed a decision, as `:decide` answers it with "recourse": for an officer, and for an applicant.

import { fill, h } from "./dom.js";
import { formatted, number, signed } from "./format.js";
import { labelOf, shownOf, titleOf } from "./values.js";

export const HEADING = "What would have changed the decision";

const COPIES = { officer: "the officer", applicant: "the applicant" };
const WORD = 0.5; // of a feature's range: the step to another word

/** The sentences of an applicant's copy, by language. */
const SENTENCES = {
  en: {
    decided: { approve: "Your application was approved.", refer: "Your application was referred to a person.", decline: "Your application was declined." },
    tried: { approve: "Your application would be approved.", refer: "Your application would be referred to a person.", decline: "Your application would be declined." },
    none: { complete: "Nothing that an applicant can change would have led to an approval.", heuristic: "No changes that would have led to an approval are known." },
    one: "This would have led to an approval, with everything else as it was:",
    several: "Any one of these would have led to an approval, with everything else as it was:",
    caveat: "This says what the model would have decided. It makes no promise, and it is no advice.",
    and: "and",
    before: (now) => `instead of ${now}`,
    missing: "missing",
    any: "any number",
    most: (number) => `at most ${number}`,
    least: (number) => `at least ${number}`,
    between: (least, most) => `between ${least} and ${most}`,
    among: (values) => `one of ${values}`,
  },
  de: {
    decided: { approve: "Ihr Antrag wurde bewilligt.", refer: "Ihr Antrag wurde einer Person vorgelegt.", decline: "Ihr Antrag wurde abgelehnt." },
    tried: { approve: "Ihr Antrag würde bewilligt.", refer: "Ihr Antrag würde einer Person vorgelegt.", decline: "Ihr Antrag würde abgelehnt." },
    none: { complete: "Nichts, was ein Antragsteller ändern kann, hätte zu einer Bewilligung geführt.", heuristic: "Änderungen, die zu einer Bewilligung geführt hätten, sind nicht bekannt." },
    one: "Dies hätte zu einer Bewilligung geführt, bei sonst gleichen Angaben:",
    several: "Jeder dieser Punkte allein hätte zu einer Bewilligung geführt, bei sonst gleichen Angaben:",
    caveat: "Dies beschreibt, wie das Modell entschieden hätte. Es ist keine Zusage und keine Beratung.",
    and: "und",
    before: (now) => `bisher ${now}`,
    missing: "keine Angabe",
    any: "eine beliebige Zahl",
    most: (number) => `höchstens ${number}`,
    least: (number) => `mindestens ${number}`,
    between: (least, most) => `${least} bis ${most}`,
    among: (values) => `eines von ${values}`,
  },
};

const sentencesOf = (language) => SENTENCES[language.split("-")[0]];

/** How a language writes values and regions; `language` has sentences. */
function wording(language = "en") {
  const own = sentencesOf(language);
  return { ...own, write: (value, rounding) => (value === null || value === "" ? own.missing : formatted(value, rounding, language)) };
}

const ENGLISH = wording();

// `form` is {fields, groups}: the descriptions of features, and of groups of one-hot features.

/** The numbers of a region in words; its ends are rounded into it. Empty if they are no numbers, or one alone. */
export function rangeOf(field, region, words = ENGLISH) {
  if (!region) return "";
  const [low, high] = field.whole ? [region[0] && Math.ceil(region[0]), region[1] && Math.floor(region[1])] : region;
  const isWithin = (value) => (low === null || low <= value) && (high === null || value <= high);
  if (field.choices) return oneOf(field, field.choices.filter(isWithin), words);
  const unit = field.unit ? ` ${field.unit}` : "";
  const [least, most] = [low !== null && words.write(low, "ceil"), high !== null && words.write(high, "floor")];
  if (low === null) return high === null ? words.any : words.most(most) + unit;
  if (high === null) return words.least(least) + unit;
  return low >= high || least === most ? "" : words.between(least, most) + unit;
}

const oneOf = (field, values, words) => (values.length > 1 ? words.among(values.map((value) => labelOf(field, value, words.write)).join(", ")) : "");

/** A plan's changes: [{title, now, then, range}]; of a group the members that are 1. `now` is null if it is not known. */
export function changesOf({ changes, regions }, row, form, words = ENGLISH) {
  const isMoved = ({ features }) => features.every((name) => Object.hasOwn(changes, name)) && memberOf({ features }, changes);
  const moved = form.groups.filter(isMoved);
  const within = new Set(moved.flatMap(({ features }) => features));
  const single = Object.keys(changes).filter((name) => !within.has(name));
  return [
    ...moved.map((group) => changeOf(group, memberOf(group, changes), row, form, null, words)),
    ...single.map((name) => changeOf(fieldOf(name, form), changes[name], row, form, regions[name], words)),
  ];
}

/** The flip points: [{title, now, then, range, step, to, isExact, changes}], the smallest steps of the features' ranges first. */
export function flipsOf({ flip_points: points }, row, form) {
  const flips = points.map(({ feature, value, to, region, exact }) => {
    const group = form.groups.find(({ name }) => name === feature);
    const field = group ?? fieldOf(feature, form);
    const changes = group ? Object.fromEntries(group.features.map((name) => [name, Number(name === value)])) : { [feature]: value };
    const isStep = typeof value === "number" && typeof row?.[feature] === "number" && !field.choices;
    const step = isStep ? value - row[feature] : null;
    const size = isStep ? Math.abs(step) / (field.most - field.least || 1) : WORD;
    return { ...changeOf(field, value, row, form, region), step, size, to, isExact: exact, changes };
  });
  return flips.sort((a, b) => a.size - b.size);
}

/** A field, or a group, that gets another value. */
function changeOf(field, value, row, form, region = null, words = ENGLISH) {
  const title = titleOf(field);
  if (field.features) {
    const called = (name) => (name === undefined ? null : titleOf(fieldOf(name, form)));
    return { title, now: called(memberOf(field, row ?? {})), then: called(value), range: "" };
  }
  const now = row && Object.hasOwn(row, field.name) ? shownOf(field, row[field.name], words.write) : null;
  return { title, now, then: shownOf(field, value, words.write), range: rangeOf(field, region, words) };
}

const memberOf = ({ features }, row) => features.find((name) => row[name] === 1);
const fieldOf = (name, { fields }) => fields.find((field) => field.name === name) ?? { name };

/** The copy for an applicant, a text: plans in plain words, without scores, costs and flip points. `form` is in the language. */
export function applicantsCopy({ id, decision, recourse }, row, form, language = "en") {
  const words = wording(language);
  const first = (id === null ? words.tried : words.decided)[decision]; // a trial has no id
  if (decision === "approve") return first;
  if (!recourse.plans.length) return `${first} ${words.none[recourse.search]}`;
  const line = ({ title, now, then, range }) => `${title}: ${range || then}${now === null ? "" : `, ${words.before(now)}`}`;
  const plans = recourse.plans.map((plan, i) => `${i + 1}. ${changesOf(plan, row, form, words).map(line).join(`;\n${words.and} `)}`);
  return [`${first} ${plans.length > 1 ? words.several : words.one}`, ...plans, words.caveat].join("\n\n");
}

/** Why there is no plan; empty where there are plans. */
export function planless({ decision, recourse: { plans, search, note } }) {
  if (plans.length) return "";
  const proved = decision !== "approve" && search === "complete" ? "No plan within these rules: this is proved." : "";
  return [proved, note].filter(Boolean).join(" ");
}

/** The copy for an officer. `take(changes)` tries them, null where there is no form for them; `figure(score)` writes a score. */
export function officersCopy({ decision, recourse }, row, form, { take, figure }) {
  const flips = flipsOf(recourse, row, form);
  return [
    h("h3", {}, "Plans"),
    recourse.plans.length
      ? [
          h("p", { class: "quiet" }, "Changes of up to four features that together lead to an approval: the model has decided on each plan. None of its changes can be left out."),
          h("ol", { class: "plans" }, recourse.plans.map((plan, i) => planCard(plan, i, row, form, { take, figure }))),
          recourse.search === "heuristic" && h("p", { class: "quiet" }, "There may be other plans, and cheaper ones."),
        ]
      : h("p", {}, planless({ decision, recourse })),
    h("h3", {}, "One feature at a time"),
    flips.length
      ? [h("p", { class: "quiet" }, "The nearest value of each feature at which the decision changes, if all else stays equal. The smallest steps come first."), flipTable(flips, take), flips.some(({ isExact }) => !isExact) && h("p", { class: "quiet" }, "* Found by trying values: a nearer one may exist.")]
      : h("p", {}, "No feature alone is known to change the decision."),
    h("p", { class: "quiet" }, ENGLISH.caveat),
  ];
}

function planCard(plan, i, row, form, { take, figure }) {
  const change = ({ title, now, then, range }) => h("li", {}, h("span", {}, title), h("span", {}, now !== null && `${now} → `, h("strong", {}, then)), range && h("small", { class: "quiet" }, range));
  const named = `Plan ${i + 1}`;
  return h(
    "li",
    { "aria-label": named },
    h("div", { class: "row" }, h("h4", {}, named), take && tryIt(`Try plan ${i + 1}`, () => take(plan.changes))),
    h("ul", {}, changesOf(plan, row, form).map(change)),
    h("p", { class: "quiet" }, `score ${figure(plan.score)}, ${plan.decision} · cost ${number(plan.cost, 3)}`),
  );
}

const tryIt = (label, onclick) => h("button", { type: "button", onclick, "aria-label": label }, "Try");

function flipTable(flips, take) {
  const heads = ["Feature", "now", "changes at", "range", "new decision"].map((name) => h("th", { scope: "col" }, name));
  const line = ({ title, now, then, range, step, to, isExact, changes }) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, title),
      h("td", { "data-name": "now" }, now ?? "–"),
      h("td", { "data-name": "changes at" }, h("strong", {}, then), step !== null && h("small", {}, ` (${signed(step, formatted)})`), !isExact && " *"),
      h("td", { "data-name": "range" }, range),
      h("td", { "data-name": "new decision" }, to),
      take && h("td", {}, tryIt(`Try ${title} ${then}`, () => take(changes))),
    );
  return h(
    "div",
    { class: "wide", tabindex: "0", role: "region", "aria-label": "One feature at a time" },
    h("table", { class: "changes" }, h("thead", {}, h("tr", {}, heads, take && h("th", { scope: "col" }, h("span", { class: "unseen" }, "Try it")))), h("tbody", {}, flips.map(line))),
  );
}

let chosen = "officer"; // as long as the page is open
let spoken = ""; // likewise: the language of the applicant's copy

/**
 * A decision's recourse in either copy. `languages` are the profile's, `formIn(language)` → the form with its texts in one,
 * `save(text, name)` a link by which a text is saved; `refused(error, place)` tells an error.
 */
export function recoursePanel(answer, row, form, { take, figure, save, languages, formIn, refused }) {
  const copy = h("div", {});
  const offered = languages.filter(sentencesOf);
  const language = h("select", { onchange: () => ((spoken = language.value), draw()) }, offered.map((code) => h("option", { value: code, selected: code === spoken }, languageName(code))));
  const chooser = h("label", { class: "choice" }, h("span", {}, "Language"), language);
  const write = async () => {
    const code = language.value || "en";
    try {
      const own = offered.length ? await formIn(code) : form;
      if (chosen === "applicant" && code === (language.value || "en")) fill(copy, letter(applicantsCopy(answer, row, own, code), code, save));
    } catch (error) {
      fill(copy, h("p", { class: "problem" }));
      refused(error, copy.firstChild);
    }
  };
  const draw = () => {
    chooser.hidden = chosen === "officer" || offered.length < 2;
    if (chosen === "applicant") write();
    else fill(copy, officersCopy(answer, row, form, { take, figure }));
  };
  const choice = h("select", { onchange: () => ((chosen = choice.value), draw()) }, Object.entries(COPIES).map(([value, name]) => h("option", { value, selected: value === chosen }, name)));
  const hidden = h("p", { class: "quiet" }, "Its recourse is not shown: the trail did not keep the inputs that it tells of.");
  if (answer.recourse) draw();
  return h(
    "section",
    { class: "panel recourse", "aria-label": HEADING },
    h("div", { class: "row" }, h("h2", {}, HEADING), answer.recourse && h("div", { class: "row" }, chooser, h("label", { class: "choice" }, h("span", {}, "Copy for"), choice))),
    answer.recourse ? copy : hidden,
  );
}

const letter = (text, lang, save) => [h("pre", { class: "letter", lang, tabindex: 0, "aria-label": "The applicant’s copy" }, text), h("p", {}, save(text, "recourse"))];

/** de → German. */
export const languageName = (code) => new Intl.DisplayNames("en", { type: "language" }).of(code);
