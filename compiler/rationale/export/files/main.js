// The page: fields on one side, the answer on the other; each change is answered by one run of the graph.

import { fill, h } from "./dom.js";
import { number, percent, rest, writers } from "./format.js";
import { Form } from "./form.js";
import { bars, scaleOf, shortened } from "./pictures/bars.js";
import { classTable, elementName, optionName } from "./pictures/classes.js";
import { summaryOf } from "./pictures/summary.js";
import { decide, own, ruleOf, unknownOf } from "./decide.js";
import { answer, openGraph } from "./graph.js";
import { prove } from "./proof.js";
import { shownOf, titleOf, typical } from "./values.js";

const OUTCOMES = { approve: "Approved", refer: "A person decides", decline: "Declined" };
const QUIET_MS = 600; // after which a screen reader is told
const place = (id) => document.getElementById(id);

async function start() {
  const facts = JSON.parse(place("facts").textContent);
  const session = await openGraph();
  const proof = facts.probes ? await prove(session, facts) : null;
  if (proof && !(proof.difference <= facts.probes.limit)) {
    return fail(`This browser does not answer as the model did when it was compiled: ${differing(proof)}. Nothing is `
      + "shown, for it could be wrong. Try another browser, and tell whoever gave you the page.");
  }
  const profile = facts.decided?.profile;
  const { score: scored, explained } = facts.outputs;
  const isShare = (output) => facts.probabilities.includes(output);
  const isScoreShare = isShare(scored === explained ? facts.output : scored);
  const figure = (score) => (isScoreShare ? percent(score) : number(score));
  let [target, isRunning, isDue, timer, scale] = [0, false, false, 0, null];
  const form = new Form(facts.fields, typical(facts.fields), () => changed());

  const changed = async () => {
    isDue = true;
    if (isRunning) return;
    isRunning = true;
    while (isDue) {
      isDue = false;
      await once();
    }
    isRunning = false;
  };

  async function once() {
    if (form.trouble) return refuse(form.trouble);
    const values = Object.assign(Object.create(null), form.row); // a feature may be called constructor
    for (const input of facts.inputs) { // a rule may say either name
      const [only, ...others] = facts.fields.filter((field) => field.input === input.name);
      if (only && !others.length && !(input.name in values)) values[input.name] = values[only.name];
    }
    const [refused, unknown] = unknownOf(facts.texts, values);
    if (refused.length) return refuse(refused.join("; "));
    const rows = await answer(session, facts, values).catch((error) => error);
    if (rows instanceof Error) return refuse(`The model cannot take these values: ${rows.message}`);
    const row = rows[target];
    const decision = facts.decided ? decide(facts.decided, row, values) : null;
    const warned = unknown.map((text) => h("p", { class: "warning" }, `${text[0].toUpperCase()}${text.slice(1)}.`));
    const said = decision?.decision ? `, ${OUTCOMES[decision.decision]}` : "";
    return show(`Score ${figure(row.score)}${said}`, [scoreOf(row), warned, decision && decisionOf(decision), picture(row, values)]);
  }

  const refuse = (text) => show(text, [h("p", { class: "problem" }, text)]);

  function show(text, parts) {
    fill(place("shown"), parts);
    place("now").textContent = text;
    clearTimeout(timer);
    timer = setTimeout(() => { place("state").textContent = text; }, QUIET_MS);
  }

  function scoreOf(row) {
    const sides = profile ? `, threshold ${figure(profile.threshold)}; ${profile.adverse} it is adverse` : "";
    const refer = profile?.refer ? `; from ${figure(profile.refer[0])} to ${figure(profile.refer[1])} a person decides` : "";
    return h("div", { class: "score" }, h("h2", {}, profile ? "Score" : nameOf(facts, row.target)),
      h("p", { class: "large" }, figure(row.score)),
      profile ? h("p", { class: "quiet" }, `${profile.output}${sides}${refer}`) : null,
      row.classes && classTable({ names: facts.class_names, values: row.classes, explained: row.target, isShare: isShare(facts.outputs.classes) }));
  }

  function decisionOf({ decision, reasons, warnings, problem }) {
    return h("div", { class: "decision" },
      decision ? h("p", {}, h("span", { class: `outcome ${decision}` }, OUTCOMES[decision])) : null,
      problem ? h("p", { class: "problem" }, problem) : null,
      reasons.length ? [h("h3", {}, "Principal reasons"), h("ol", { id: "reasons" }, reasons.map((reason) =>
        h("li", { "data-code": reason.code }, reason.text,
          h("span", { class: "quiet" }, ` ${reason.code}${reason.share === undefined ? "" : `, ${percent(reason.share)}`}`))))] : null,
      warnings.map((text) => h("p", { class: "warning" }, `${text[0].toUpperCase()}${text.slice(1)}.`)));
  }

  function picture(row, values) {
    const items = Object.entries(row.attributions).map(([key, amount]) => ({
      key, name: ruleOf(profile, key).title ?? key, ...membersOf(facts, key, values), amount,
    }));
    const isScore = Math.abs(row.explained - row.score) <= 1e-6 * Math.max(1, Math.abs(row.score));
    const threshold = profile && isScore ? profile.threshold : null;
    const kind = row.base === null ? "bars" : "waterfall";
    scale = scaleOf([{ items, base: row.base }], kind, scale, threshold);
    const effects = shortened(items).map(({ amount }) => amount);
    const write = writers(effects, [row.base ?? row.explained, row.explained], isShare(facts.output));
    const drawn = bars({ items, write, base: row.base, value: row.explained, kind, threshold, scale,
      caption: "Attributions, largest first", valueName: isScore ? "score" : "explained value" });
    const gap = row.gap === null ? null
      : h("p", { class: "quiet" }, `Completeness gap ${rest(row.gap)}: what the attributions leave unexplained.`);
    const line = summaryOf({ items, write, base: row.base, value: row.explained, score: row.score, threshold: profile?.threshold ?? null,
      unit: profile && !isScore ? "margin" : "", isShare: isScoreShare });
    return [h("h3", {}, "What contributes"), h("p", { class: "sentence" }, line), drawn, gap, digits(row, items, values)];
  }

  /** Every number as the graph answers it, for whoever holds them against another computation. */
  function digits(row, items, values) {
    const hasErrors = Object.keys(row.errors).length > 0;
    const kinds = Object.keys(row.byFeature), inWords = (kind) => kind.replaceAll("_", " ");
    const ends = [["score", row.score], ["explained value", row.explained], ["base value", row.base], ["completeness gap", row.gap], ...Object.entries(row.others).map(([kind, value]) => [inWords(kind), value])];
    const numbers = [...ends.filter(([, value]) => value !== null).map(([name, value]) => [name, "", value]),
      ...items.map(({ key, shown, members, amount }) => [key, key in values ? String(values[key] ?? "missing") : members ?? shown, amount, ...(hasErrors ? [own(row.errors, key)] : []), ...kinds.map((kind) => own(row.byFeature[kind], key))])];
    const titles = ["Name", "Value", "Number", ...(hasErrors ? ["Standard error"] : []), ...kinds.map(inWords)];
    const isOpen = place("digits")?.open ?? false;
    return h("details", { id: "digits", open: isOpen }, h("summary", {}, "All digits"), h("table", {},
      h("thead", {}, h("tr", {}, titles.map((text) => h("th", { scope: "col" }, text)))),
      h("tbody", {}, numbers.map(([name, ...cells]) =>
        h("tr", {}, h("th", { scope: "row" }, name), titles.slice(1).map((_, i) => h("td", {}, cells[i] ?? "")))))));
  }

  const chooser = facts.targets.length < 2 ? null : h("label", { class: "chooser" }, "Explained ",
    h("select", { onchange: (event) => { [target, scale] = [Number(event.target.value), null]; changed(); } },
      facts.targets.map((each, i) => h("option", { value: i }, optionName(explainedOf(facts), each)))));
  if (chooser) place("answer").prepend(chooser);
  const reset = () => { form.set(typical(facts.fields)); changed(); };
  fill(place("form"), h("h2", {}, "Features"), form.element,
    h("p", { class: "row" }, h("button", { type: "button", onclick: reset }, "Begin again")));
  place("form").addEventListener("submit", (event) => event.preventDefault());
  fill(place("facts-shown"), about(facts, proof).map((text) => h("p", {}, text)));
  if (proof && proof.difference > facts.probes.warned) {
    place("answer").prepend(h("p", { class: "warning", id: "drift" },
      `In this browser ${differing(proof)}: the last digits may be others than on a server.`));
  }
  place("state").className = "unseen";
  place("main").hidden = place("footer").hidden = false;
  await changed();
}

const differing = ({ output, difference }) => `${output} differs by ${difference.toPrecision(2)} of its range`;

function fail(text) {
  place("state").textContent = text;
  place("state").className = "problem";
}

function about(facts, proof) {
  const references = facts.references ? ` over ${facts.references} references` : "";
  return [
    `Explained by ${facts.method}${references}; explainer ${facts.digest}.`,
    `${facts.tools}, ${facts.runtime}. The graph runs in this page, single-threaded, by WebAssembly.`,
    ...(proof ? [`Before it showed anything, it answered ${facts.probes.rows} probe rows: they differ from the due answers by ${proof.difference.toPrecision(1)} of the range at most.`] : []),
    "The page's Content-Security-Policy lets it load nothing and send nothing.",
    ...(facts.references ? ["The graph holds what it needs of the rows that it compares with. They may be people's: hand the page on only to somebody who may see them."] : []),
  ];
}

const explainedOf = (facts) => ({ output: facts.output, size: facts.elements, classNames: facts.class_names });

const nameOf = (facts, target) => elementName(explainedOf(facts), target);

function membersOf(facts, key, values) {
  const members = own(facts.groups, key) ?? [key];
  const text = members.map((name) => {
    const field = facts.fields.find((each) => each.name === name);
    if (!field) return null;
    const value = shownOf(field, values[name]);
    return members.length > 1 ? `${titleOf(field)}: ${value}` : value;
  }).filter(Boolean).join("; ");
  return members.length > 1 ? { members: text } : { shown: text };
}

start().catch((error) => fail(`This page cannot compute here: ${error.message ?? error}. It needs a browser of mid-2024 or later.`));
