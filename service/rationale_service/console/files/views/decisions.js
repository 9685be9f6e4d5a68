// Decisions: what would be decided, what was, why, how sure that is, and what the applicant is told.

import * as address from "../address.js";
import * as api from "../api.js";
import { fill, h } from "../dom.js";
import { Form } from "../form.js";
import { number, percent, percentInTable, rest, formatted, writers } from "../format.js";
import { FIELDS, TEMPLATES, nested } from "../notices.js";
import { gauge } from "../pictures/gauge.js";
import { languageName, recoursePanel } from "../recourse.js";
import * as reviews from "../reviews.js";
import * as rows from "../rows.js";
import { isShare } from "../score.js";
import { shownOf } from "../values.js";

export const title = "Decisions";

const OUTCOMES = { approve: "Approve", refer: "Refer to a person", decline: "Decline" };
const AUDIT = "v1/decisions/";
const IDLE = 300; // milliseconds without a move, after which the address and who does not see are told
const letters = {}; // what a lender wrote of itself, from one notice to the next, as long as the page is open

/** Why there is nothing to decide by; empty where there is. */
export function unavailable(model) {
  return model.decision ? "" : "The model has no decision profile: compile it with --decision FILE, and it decides.";
}

export async function show(root, at, context) {
  new View(root, at, context).begin();
}

class View {
  constructor(root, at, { model, signal, go, say, failed }) {
    Object.assign(this, { root, at, model, signal, go, say, failed });
    this.fields = rows.decisionFields(model);
    this.form = new Form(this.fields, rows.read(this.fields, at.row), () => this.moved());
    this.latest = new api.Latest(
      (question) => this.try(question),
      ({ answer, question }) => question.turn === this.turn && this.decided(answer, null, question.row),
      (error, question) => question.turn === this.turn && this.undecided(error),
    );
    this.turn = 0; // of whatever was asked for last
    this.open = new Set(); // details that stay open from one answer to the next
  }

  begin() {
    this.find = h("input", { id: "decision-id", value: this.at.decision ?? "", spellcheck: "false", autocomplete: "off", placeholder: "32 digits and letters" });
    this.findTold = h("p", { class: "problem", role: "alert" });
    this.formTold = h("p", { class: "problem", role: "alert" });
    this.confirm = h("div", {});
    this.result = h("div", { class: "result" });
    this.now = h("p", { class: "now panel", "aria-hidden": "true", hidden: true });
    this.root.append(
      h("h1", {}, `${title} of ${this.model.model}`),
      this.now,
      h("div", { class: "sides" }, h("div", {}, this.old(), this.applicant()), this.result),
    );
    if (this.at.decision) this.look(this.at.decision);
    else this.moved();
  }

  old() {
    return h(
      "section",
      { class: "panel", "aria-label": "A recorded decision" },
      h("h2", {}, "A recorded decision"),
      h(
        "form",
        {
          onsubmit: (event) => {
            event.preventDefault();
            this.look(this.find.value.trim().toLowerCase());
          },
        },
        h("label", { for: "decision-id", class: "quiet" }, "Its id"),
        h("div", { class: "row find" }, this.find, h("button", { type: "submit" }, "Show it")),
        this.findTold,
      ),
      reviews.search(this.model.model, this.reviewing()),
    );
  }

  /** What panels of reviews need of this view. */
  reviewing() {
    return { show: (id) => this.look(id), refused: (error, place) => this.refused(error, place), called: (name) => this.called(name), signal: this.signal };
  }

  applicant() {
    const { comparisons } = this.model.decision;
    this.decide = h("button", { type: "button", onclick: () => this.askFirst() }, "Decide and record …");
    this.recourse = h("input", { type: "checkbox", onchange: () => this.moved() });
    this.stability = comparisons.length ? h("input", { type: "checkbox", checked: true, onchange: () => this.moved() }) : null;
    return h(
      "section",
      { class: "panel", "aria-label": "An applicant" },
      h("h2", {}, "An applicant"),
      h("p", { class: "quiet" }, "Move a slider to see the decision for other values. Nothing is recorded."),
      this.form.element,
      this.stability && h("p", { class: "check" }, h("label", { class: "row" }, this.stability, `Show which reasons stay with other references: ${others(comparisons)}`)),
      h("p", { class: "check" }, h("label", { class: "row" }, this.recourse, "With recourse: add the changes that would have changed the decision")),
      this.formTold,
      h("p", { class: "row" }, this.decide),
      this.confirm,
    );
  }

  // --- asking --------------------------------------------------------------------------------------------

  /** The applicant is another one: see what would be decided. */
  moved() {
    fill(this.confirm);
    this.turn += 1;
    clearTimeout(this.idle);
    this.decide.disabled = Boolean(this.form.trouble);
    if (this.form.trouble) return this.undecided(new api.Problem(0, "Nothing is decided", this.form.trouble));
    this.latest.ask({ row: this.form.row, turn: this.turn });
    this.idle = setTimeout(() => this.rested(), IDLE);
  }

  async try(question) {
    const { decisions } = await api.decide(this.model.model, [question.row], { ...this.more(), dry_run: true }, { signal: this.signal });
    this.formTold.textContent = "";
    return { answer: decisions[0], question };
  }

  /** Nothing would be decided: of a decision that was shown before nothing stays. */
  undecided(error) {
    fill(this.result);
    fill(this.now).hidden = true;
    this.shownId = this.outcome = undefined;
    this.refused(error, this.formTold);
  }

  more() {
    return { ...(this.stability?.checked && { stability: true }), ...(this.recourse.checked && { recourse: true }) };
  }

  rested() {
    if (this.signal.aborted) return;
    this.go({ row: rows.written(this.form.row), decision: this.shownId ?? "" });
    if (this.outcome) this.say(this.outcome);
  }

  /** A decision is on record for good: it is made after a second word. */
  askFirst() {
    const key = Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
    const go = h("button", { type: "button", class: "first", onclick: () => this.record(`console-${key}`) }, "Decide, and record it");
    fill(
      this.confirm,
      h(
        "div",
        { class: "panel warning", role: "group", "aria-label": "Decide and record" },
        h("p", {}, "This decides about the applicant, as a request of your application does. The audit trail keeps the decision, its inputs and the name of your key."),
        h("div", { class: "row" }, go, h("button", { type: "button", onclick: () => fill(this.confirm) }, "Leave it")),
      ),
    );
    go.focus();
  }

  /** `key` makes sure that it is decided once, however often this is asked. */
  async record(key) {
    const row = this.form.row;
    this.turn += 1;
    this.result.setAttribute("aria-busy", "true");
    try {
      const { decisions } = await api.decide(this.model.model, [row], this.more(), { signal: this.signal, headers: { "Idempotency-Key": key } });
      const [answer] = decisions;
      fill(this.confirm);
      this.find.value = answer.id;
      this.decided(answer, null, row);
      this.rested();
    } catch (error) {
      this.refused(error, this.formTold);
    } finally {
      this.result.removeAttribute("aria-busy");
    }
  }

  async look(id) {
    this.findTold.textContent = "";
    if (!/^[0-9a-f]{32}$/.test(id)) {
      this.findTold.textContent = "An id has 32 digits and letters from a to f: copy it from the answer, or from the notice’s reference.";
      return;
    }
    try {
      this.turn += 1; // what is on its way is not asked for any more
      const record = await api.get(AUDIT + id, { signal: this.signal });
      this.find.value = id;
      if (record.kind === "decision") this.decided(record.answer, record, record.instance);
      else this.judged(record);
      this.rested();
    } catch (error) {
      this.refused(error, this.findTold);
    }
  }

  refused(error, place) {
    if (error.name === "AbortError") return;
    if (error.status === 401 || !(error instanceof api.Problem)) return void this.failed(error);
    place.textContent = `${error.title}: ${error.detail}${error.scope === "audit" ? ". Recorded decisions are people’s data: they are read with a key that has the scope audit" : ""}`;
  }

  // --- a decision ----------------------------------------------------------------------------------------

  /** `record` None of one that was made just now; `row` is what it was on, where that is known. */
  decided(answer, record, row) {
    this.shownId = answer.id;
    const outcome = h("span", { class: `outcome ${answer.decision}` }, OUTCOMES[answer.decision] ?? answer.decision);
    const rule = { ...this.model.decision, threshold: answer.threshold };
    const isOther = record && record.model !== this.model.model;
    if (isOther) rule.refer = null;
    fill(
      this.result,
      h(
        "section",
        { class: "panel", "aria-label": "The decision" },
        h("h2", {}, record ? "The decision, as it was answered" : answer.id ? "Decided, and recorded" : "What would be decided"),
        h("p", {}, outcome),
        gauge(answer.score, rule, OUTCOMES[answer.decision] ?? answer.decision, (score) => this.figure(score)),
        this.where(answer, record, isOther),
        answer.warnings.map((warning) => h("p", { class: "panel warning" }, warning)),
        h("h2", {}, "Principal reasons"),
        this.reasons(answer, isOther ? null : row),
        this.details("All attributions", this.attributions(answer)),
        answer.difference && this.details("What differs from the first decision", reviews.difference(answer.difference, (name) => this.called(name), this.writers(answer).effect)),
        row && this.details("Decided inputs", this.instance(row, record, isOther)),
        this.details("Digests", this.digests(answer, record)),
      ),
      answer.recourse !== undefined && this.changing(answer, row, isOther),
      answer.id && [this.replayPanel(answer, record), this.noticePanel(answer, record), reviews.panel(answer.id, row, this.reviewing())],
      !answer.id && h("section", { class: "panel" }, h("h2", {}, "Notice"), h("p", { class: "quiet" }, "Record the decision first; its notice then appears here.")),
    );
    this.now.hidden = false;
    fill(this.now, outcome.cloneNode(true), ` score ${this.figure(answer.score)}`);
    this.outcome = `${OUTCOMES[answer.decision] ?? answer.decision}, score ${this.figure(answer.score)}, ${answer.reasons.length} reasons`;
  }

  /** A person's judgment has no score; a contest is shown with its case. */
  judged(record) {
    this.shownId = record.answer.id;
    this.outcome = OUTCOMES[record.answer.decision] ?? "Contest";
    fill(this.now).hidden = true;
    fill(
      this.result,
      reviews.panel(record.answer.id, null, this.reviewing()),
      record.kind === "judgment" && this.noticePanel(record.answer, record),
    );
  }

  /** What would have changed it. */
  changing(answer, row, isOther) {
    const formOf = (model) => ({ fields: rows.decisionFields(model), groups: model.groups });
    const form = isOther ? { fields: [], groups: [] } : formOf(this.model);
    const languages = isOther ? [] : this.model.decision.languages;
    const formIn = async (language) => (language === languages[0] ? form : formOf(await api.features(this.model.model, this.model.explainer, { language, signal: this.signal })));
    const take = isOther || !row ? null : (changes) => this.put({ ...row, ...changes });
    const save = (text, name) => this.saved(text, `${name}-${answer.id ?? "what-if"}.txt`);
    const refused = (error, place) => this.refused(error, place);
    return recoursePanel(answer, row, form, { take, save, languages, formIn, refused, figure: (score) => this.figure(score) });
  }

  /** Put a row into the form. */
  put(row) {
    this.form.set(rows.read(this.fields, rows.written(row)));
    this.moved();
  }

  /** A link by which a text is saved. */
  saved(text, name) {
    const url = URL.createObjectURL(new Blob([text], { type: "text/plain" }));
    this.signal.addEventListener("abort", () => URL.revokeObjectURL(url));
    return h("a", { href: url, download: name }, "Save it as a file");
  }

  /** A score as text. */
  figure(score) {
    return isShare(this.model, this.model.decision.output) ? percent(score) : number(score);
  }

  /** Writers of what is explained: attributions, and what they add up to. */
  writers(answer) {
    const { output, space } = this.model.decision;
    const effects = Object.values(answer.attributions);
    return writers(effects, [answer.base_value, answer.explained_value], space === "output" && isShare(this.model, output));
  }

  details(called, ...content) {
    const element = h("details", { open: this.open.has(called), ontoggle: () => this.open[element.open ? "add" : "delete"](called) }, h("summary", {}, called), content);
    return element;
  }

  where(answer, record, isOther) {
    if (!answer.id) return h("p", { class: "quiet" }, "Nothing was recorded. This is a trial, not a decision.");
    const facts = [
      ["Id", h("span", { class: "mono" }, answer.id)],
      ["Application", answer.application_id],
      ["Time", record && new Date(record.time).toLocaleString()],
      ["Model", record && `${record.model}, version ${record.version}`],
      ["Asked by", record && (record.caller || "a caller without a key")],
      ["Inputs", record && { plain: "kept as they were", hashed: "only a digest was kept", sealed: "kept sealed", erased: "were erased" }[record.kept]],
    ];
    return [
      h("dl", { class: "recorded" }, facts.filter(([, value]) => value).flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
      isOther &&
        h(
          "p",
          { class: "panel warning" },
          `It belongs to the model ${record.model}, not to ${this.model.model}.  `,
          h("a", { href: address.changed({ model: record.model, explainer: "", digest: "", row: "", decision: answer.id }) }, "Go there"),
        ),
    ];
  }

  reasons(answer, row) {
    if (!answer.reasons.length) return h("p", { class: "quiet" }, answer.decision === "approve" ? "None: an approval needs no reasons." : "None.");
    return h("ol", { class: "reasons" }, answer.reasons.map((reason) => this.reason(reason, answer, row)));
  }

  reason(reason, answer, row) {
    const isKnockOut = reason.attribution === null;
    const share = isKnockOut ? null : percentInTable(reason.share);
    return h(
      "li",
      {},
      h(
        "div",
        { class: "head" },
        h("span", { class: "code" }, reason.code),
        h("span", { class: "text" }, reason.text),
        h("span", { class: "number" }, share ?? "a rule of its own"),
      ),
      !isKnockOut && h("div", { class: "bar", "aria-hidden": "true" }, h("div", { style: { "--share": `${Math.min(100, 100 * reason.share)}%` } })),
      h("div", { class: "quiet" }, this.because(reason, row), isKnockOut ? "" : ` · ${this.writers(answer).effect(reason.attribution)}${this.writers(answer).unit && ` ${this.writers(answer).unit}`} of the ${this.model.decision.space === "margin" ? "margin" : "score"}`),
      this.sureness(reason, answer),
    );
  }

  /** The features of a reason with their values; of the further ones too, if the row is known. */
  because(reason, row) {
    const known = (name) => {
      const field = this.fields.find((one) => one.name === name);
      return field && row && Object.hasOwn(row, name) ? shownOf(field, row[name]) : null;
    };
    const told = () => (reason.category === null && known(reason.feature)) || (reason.shown ?? shownValue(reason.value));
    const parts = reason.features.map((name) => {
      const value = reason.feature === name ? told() : known(name);
      const called = this.called(name);
      return value === null || (value === reason.shown && value.includes(called)) ? value ?? called : `${called}: ${value}`;
    });
    return parts.join(", ");
  }

  called(name) {
    const found = this.fields.find((one) => one.name === name) ?? this.model.groups.find((one) => one.name === name);
    return found?.title ?? name;
  }

  /** How sure it is that this is a principal reason, and in this place. */
  sureness(reason, answer) {
    const error = reason.features.length === 1 ? answer.standard_errors?.[reason.feature] : undefined;
    const marks = [
      reason.tied && ["doubt", "as large as the next reason"],
      reason.uncertain && ["doubt", "nearer to the next reason than its standard error"],
      error !== undefined && ["", `standard error ${number(error)}`],
      ...Object.entries(reason.survival ?? {}).map(([name, stays]) =>
        typeof stays === "boolean"
          ? [stays ? "stays" : "doubt", `${stays ? "stays" : "is no reason"} by ${name.replaceAll("_", " ")}`]
          : [stays >= 0.9 ? "stays" : stays < 0.5 ? "doubt" : "", `in ${percent(stays)} of the ${name} of references`],
      ),
    ].filter(Boolean);
    if (!marks.length) return null;
    return h("div", { class: "sure" }, marks.map(([kind, text]) => h("span", { class: kind }, text)));
  }

  attributions(answer) {
    const rows = Object.entries(answer.attributions).sort(([, a], [, b]) => Math.abs(b) - Math.abs(a));
    const sum = rows.reduce((total, [, value]) => total + value, 0);
    const write = this.writers(answer);
    const line = (name, value, more = null) => h("tr", {}, h("th", { scope: "row" }, name), h("td", { class: "number" }, value), answer.standard_errors && h("td", { class: "number" }, more ?? ""));
    return h(
      "table",
      {},
      h("caption", { class: "quiet" }, "The base value, what each feature adds to it, and what is explained: the score, or its margin."),
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Feature"), h("th", { scope: "col", class: "number" }, "Adds", write.unit && h("small", {}, write.unit)), answer.standard_errors && h("th", { scope: "col", class: "number" }, "Standard error"))),
      h(
        "tbody",
        {},
        line("Base value", write.value(answer.base_value)),
        rows.map(([name, value]) => line(this.called(name), write.effect(value), answer.standard_errors && number(answer.standard_errors[name]))),
        line("Sum of attributions", write.effect(sum)),
        line("Gap", rest(answer.completeness_gap)),
        line("Explained value", write.value(answer.explained_value)),
      ),
    );
  }

  instance(row, record, isOther) {
    const shown = (name, value) => {
      const field = isOther ? undefined : this.fields.find((one) => one.name === name);
      return field ? shownOf(field, value) : shownValue(value);
    };
    return [
      h(
        "table",
        {},
        h("tbody", {}, Object.entries(row).map(([name, value]) => h("tr", {}, h("th", { scope: "row" }, this.called(name)), h("td", { class: "number" }, shown(name, value))))),
      ),
      record && !isOther &&
        h(
          "p",
          { class: "row" },
          h("button", { type: "button", onclick: () => this.put(row) }, "Put these values into the form"),
          h("a", { href: address.changed({ view: "explain", row: rows.written(row), decision: "" }) }, "Move them with sliders, in Explain"),
        ),
    ];
  }

  digests(answer, record) {
    const all = { ...answer.digests, ...(record ? { "files that ran": record.runtime.graph } : {}) };
    return h("dl", { class: "recorded" }, Object.entries(all).flatMap(([name, value]) => [h("dt", {}, name), h("dd", { class: "mono" }, value ?? "none")]));
  }

  // --- its notice, and its repetition --------------------------------------------------------------------

  replayPanel(answer, record) {
    const out = h("div", { role: "status" });
    const given = this.hashedInputs(record);
    const button = h("button", { type: "button", onclick: () => run() }, "Compute it again");
    const run = async () => {
      fill(out, h("p", { class: "quiet" }, "Computing it again …"));
      button.disabled = true;
      try {
        const made = await api.post(`${AUDIT}${answer.id}:replay`, given.read(), { signal: this.signal });
        fill(out, replayed(made));
      } catch (error) {
        fill(out, h("p", { class: "problem" }));
        this.refused(error, out.firstChild);
      }
      button.disabled = false;
    };
    return h(
      "section",
      { class: "panel", "aria-label": "Replay" },
      h("h2", {}, "Replay"),
      h("p", { class: "quiet" }, "The gateway computes the decision again with the files that decided, and compares every number."),
      given.field,
      h("p", {}, button),
      out,
    );
  }

  /** Where the trail keeps only a digest of inputs, whoever asks has to give them again. */
  hashedInputs(record) {
    if (record?.kept !== "hashed") return { field: null, read: () => ({}) };
    const area = h("textarea", { spellcheck: "false", placeholder: '{"income": 41000, …}' });
    return {
      field: h("label", { class: "entry" }, h("span", {}, "Decided inputs, as JSON: the trail kept only a digest"), area),
      read: () => {
        if (!area.value.trim()) return {};
        try {
          return { instance: JSON.parse(area.value) };
        } catch {
          throw new api.Problem(0, "Decided inputs", "this is not JSON: write an object of features");
        }
      },
    };
  }

  noticePanel(answer, record) {
    const body = h("div", {});
    const out = h("div", { role: "status" });
    const given = this.hashedInputs(record);
    const choice = h(
      "select",
      { name: "template", onchange: () => (draw(), fill(out)) },
      Object.entries(TEMPLATES).map(([name, called]) => h("option", { value: name, selected: name === letters.template }, called)),
    );
    const language = h("select", { name: "language", onchange: () => fill(out) });
    const chooser = h("div", {});
    const offer = ({ languages }) => {
      fill(language, languages.map((code) => h("option", { value: code }, languageName(code))));
      fill(chooser, languages.length > 1 && h("label", { class: "entry" }, h("span", {}, "Language"), language));
    };
    const isReferred = answer.decision === "refer";
    const judgment = h("textarea", { name: "judgment", placeholder: "One reason a line" });
    const inputs = new Map(); // path → {called, control, read()}
    const draw = () => {
      letters.template = choice.value;
      inputs.clear();
      fill(body, h("div", { class: "entries" }, FIELDS[choice.value].map((field) => noticeField(field, "", inputs))));
    };
    const write = async () => {
      const variables = Object.fromEntries([...inputs].map(([path, { read }]) => [path, read()]));
      const message = { template: choice.value, variables: nested(variables), person_declined: isReferred };
      if (isReferred) inputs.set("judgment", { called: "Reasons of the person", control: judgment, read: () => linesOf(judgment) });
      const empty = [...inputs.values()].filter(({ read }) => read() === "" || read().length === 0);
      for (const { control } of inputs.values()) control.removeAttribute("aria-invalid");
      if (empty.length) {
        for (const { control } of empty) control.setAttribute("aria-invalid", "true");
        empty[0].control.focus();
        fill(out, h("p", { class: "problem" }, `Still missing: ${empty.map((one) => one.called).join(", ")}`));
        return;
      }
      try {
        if (isReferred) message.variables.judgment = linesOf(judgment);
        Object.assign(message, given.read());
        const asked = language.value ? `?language=${language.value}` : "";
        const made = await api.post(`${AUDIT}${answer.id}:notice${asked}`, message, { signal: this.signal });
        fill(out, this.letter(made));
      } catch (error) {
        fill(out, h("p", { class: "problem" }));
        this.refused(error, out.firstChild);
      }
    };
    if (answer.decision === "approve") {
      return h("section", { class: "panel" }, h("h2", {}, "Notice"), h("p", { class: "quiet" }, "An approval has none."));
    }
    draw();
    if (record) offer(record);
    else api.get(AUDIT + answer.id, { signal: this.signal }).then(offer, () => {}); // who may not read it gets no notice
    return h(
      "section",
      { class: "panel", "aria-label": "Notice" },
      h("h2", {}, "Notice"),
      h("p", { class: "quiet" }, "The notice lists all principal reasons and no others. The templates are drafts for your counsel, not legal advice. The gateway sends nothing."),
      isReferred && h("label", { class: "entry" }, h("span", {}, "The decision was referred: the person's reasons for the decline, one per line"), judgment),
      h("label", { class: "entry" }, h("span", {}, "Template"), choice),
      chooser,
      body,
      given.field,
      h("p", {}, h("button", { type: "button", onclick: write }, "Write the notice")),
      out,
    );
  }

  letter({ id, text, language, warnings }) {
    return [
      warnings.map((warning) => h("p", { class: "panel warning" }, warning)),
      h("pre", { class: "letter", tabindex: 0, lang: language, "aria-label": "The notice" }, text),
      h("p", {}, this.saved(text, `notice-${id}.txt`)),
    ];
  }
}

/** ["all_applicants", "draw 1", "draw 2"] → "all applicants, 2 draws". */
function others(comparisons) {
  const draws = comparisons.filter((name) => name.startsWith("draw "));
  const named = comparisons.filter((name) => !name.startsWith("draw ")).map((name) => name.replaceAll("_", " "));
  return [...named, ...(draws.length ? [`${draws.length} draws`] : [])].join(", ");
}

function replayed(made) {
  const precision = made.exact ? "on the same runtime: equal bit for bit" : "on another runtime: equal within a ten thousandth of the largest number";
  return [
    made.same
      ? h("p", {}, h("strong", {}, "The same decision"), `, ${precision}.`)
      : [h("p", { class: "problem" }, "Something differs:"), h("ul", { class: "differences" }, made.differences.map((one) => h("li", {}, one)))],
    made.elsewhere.length > 0 && h("ul", { class: "quiet" }, made.elsewhere.map((one) => h("li", {}, one))),
    made.passed_over.length > 0 && h("p", { class: "quiet" }, `Not computed again: ${made.passed_over.join(", ")}.`),
    h("p", { class: "quiet" }, `Computed by the entry ${made.entry}.`),
  ];
}

/** A field of a notice, and those within it; `inputs` learns how each is read. */
function noticeField([path, called, more = {}], within, inputs) {
  const name = [within, path].filter(Boolean).join(".");
  if (more.within) return group(name, called, more, inputs);
  const remembered = `${letters.template}:${name}`;
  const isApplicants = name.startsWith("applicant.") || name.startsWith("consumer_report.");
  const field = h(more.lines ? "textarea" : "input", {
    name,
    value: letters[remembered] ?? "",
    autocomplete: "off",
    oninput: () => {
      if (!isApplicants) letters[remembered] = field.value;
    },
  });
  inputs.set(name, { called, control: field, read: () => (more.lines ? linesOf(field) : field.value.trim()) });
  return h("label", { class: "entry" }, h("span", {}, called), field);
}

function group(name, called, more, inputs) {
  const inner = h("div", { class: "entries" });
  const own = new Map();
  const choice = h(
    "select",
    {
      name,
      onchange: () => {
        own.clear();
        fill(inner, choice.value === "some" && more.within.map((field) => noticeField(field, name, own)));
        for (const path of [...inputs.keys()]) if (path === name || path.startsWith(`${name}.`)) inputs.delete(path);
        if (choice.value !== "some") inputs.set(name, unset);
        for (const [path, one] of own) inputs.set(path, one);
      },
    },
    [["", "choose …"], ["none", more.none], ["some", more.some]].map(([value, text]) => h("option", { value }, text)),
  );
  const unset = { called, control: choice, read: () => (choice.value === "none" ? false : "") };
  inputs.set(name, unset);
  return [h("label", { class: "entry" }, h("span", {}, called), choice), inner];
}

const linesOf = (area) => area.value.split("\n").map((line) => line.trim()).filter(Boolean);

/** A value as it was sent; of a group by member. */
function shownValue(value) {
  if (value !== null && typeof value === "object") return Object.entries(value).map(([name, one]) => `${name} ${formatted(one)}`).join(", ");
  return formatted(value);
}
