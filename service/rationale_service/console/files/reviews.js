// Contests and reviews of a recorded decision: what happened, what holds, and the forms to contest, correct and judge.

import * as api from "./api.js";
import { fill, h } from "./dom.js";

const AUDIT = "v1/decisions/";
const STATES = { decided: "Decided", referred: "Referred", contested: "Contested", reviewed: "Reviewed" };
const OUTCOMES = { approve: "Approve", refer: "Refer to a person", decline: "Decline" };
const IDS = 20; // decisions of an application that are listed

const when = (time) => new Date(time).toLocaleString();
const newKey = () => `console-${Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("")}`;

/** What happened, in a line: "Decline, judged by M. Officer". */
export function eventText({ kind, decision, reviewer }) {
  if (kind === "contest") return "Contested by the applicant";
  const outcome = OUTCOMES[decision] ?? decision;
  if (kind === "judgment") return `${outcome}, judged by ${reviewer}`;
  return reviewer ? `${outcome}, on inputs corrected by ${reviewer}` : outcome;
}

/** A person's reasons from lines: "R05: text" has a code, "text" none. */
export function reasonsOf(lines) {
  return lines
    .split("\n")
    .map((line) => line.trim())
    .filter(Boolean)
    .map((line) => {
      const [, code, text] = /^([\w.-]{1,40}): +(.+)$/.exec(line) ?? [null, null, line];
      return { code, text };
    });
}

/** The value that a field's text stands for: of the kind that the input had before. Empty is missing. */
export function valueOf(text, before) {
  if (text.trim() === "") return null;
  if (typeof before === "string") return text;
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

/**
 * The panel of a decision's case. `row` is what it was on, or null; `show(id)` shows another decision of the case,
 * `refused(error, place)` tells of what went wrong, `called(name)` is a feature's title.
 */
export function panel(id, row, { show, refused, called, signal }) {
  const content = h("div", { "aria-live": "polite" }, h("p", { class: "quiet" }, "…"));
  const told = h("p", { class: "problem", role: "alert" });

  async function ask(verb, message, key) {
    told.textContent = "";
    try {
      return await api.post(`${AUDIT}${id}:${verb}`, message, { signal, headers: { "Idempotency-Key": key } });
    } catch (error) {
      refused(error, told);
      return null;
    }
  }

  async function read() {
    try {
      draw(await api.get(`${AUDIT}${id}:history`, { signal }));
    } catch (error) {
      fill(content);
      refused(error, told);
    }
  }

  function draw(found) {
    const isLate = found.review_by !== null && new Date(found.review_by) < new Date();
    fill(
      content,
      h("p", {}, h("strong", {}, STATES[found.state] ?? found.state), found.review_by && h("span", { class: isLate ? "problem" : "quiet" }, ` · a person has to review it by ${when(found.review_by)}`)),
      found.standing !== id && h("p", { class: "panel warning" }, "Another decision replaced this one. ", h("button", { type: "button", onclick: () => show(found.standing) }, "Show the valid decision")),
      h("ol", { class: "events" }, found.events.map((event) => happened(event, found))),
      contestForm(),
      judgeForm(),
      row && correctForm(),
    );
  }

  function happened(event, found) {
    const link = event.kind !== "contest" && event.id !== id && h("button", { type: "button", onclick: () => show(event.id) }, "Show it");
    return h(
      "li",
      {},
      h("div", { class: "row" }, h("span", {}, eventText(event), event.id === found.standing && h("strong", {}, " · holds")), link),
      h("div", { class: "quiet" }, `${when(event.time)} · ${event.caller || "a caller without a key"}`),
      event.kind === "contest" && h("blockquote", {}, event.words ?? "The words of the applicant are not shown."),
      event.kind === "judgment" && event.reasons.length > 0 && h("ul", {}, event.reasons.map(({ code, text }) => h("li", {}, code && h("span", { class: "mono" }, `${code} `), text))),
    );
  }

  /** A form that folds out; `message()` is what it sends, `done(answer)` comes after. */
  function form(called, verb, fields, button, message, done) {
    const key = newKey();
    const go = h("button", { type: "submit" }, button);
    return h(
      "details",
      {},
      h("summary", {}, called),
      h(
        "form",
        {
          onsubmit: async (event) => {
            event.preventDefault();
            go.disabled = true;
            const answer = await ask(verb, message(), key);
            go.disabled = false;
            if (answer) done(answer);
          },
        },
        h("div", { class: "entries" }, fields),
        h("p", { class: "row" }, go),
      ),
    );
  }

  function contestForm() {
    const reason = h("textarea", { rows: 3, required: true, maxlength: 2000 });
    return form("The applicant contests it", "contest", entry("What the applicant says", reason), "Record the contest", () => ({ reason: reason.value }), read);
  }

  function judgeForm() {
    const reviewer = h("input", { required: true, maxlength: 255 });
    const decision = h("select", { required: true }, h("option", { value: "" }, "choose …"), ["approve", "decline"].map((one) => h("option", { value: one }, OUTCOMES[one])));
    const reasons = h("textarea", { rows: 3 });
    const fields = [entry("Who reviews it", reviewer), entry("Decision", decision), entry("Reasons, one a line, such as R05: text", reasons)];
    const message = () => ({ reviewer: reviewer.value, decision: decision.value, reasons: reasonsOf(reasons.value) });
    return form("Judge the case", "review", fields, "Record the judgment", message, (answer) => show(answer.id));
  }

  function correctForm() {
    const reviewer = h("input", { required: true, maxlength: 255 });
    const inputs = Object.entries(row).map(([name, value]) => [name, value, h("input", { value: typeof value === "string" ? value : JSON.stringify(value ?? "").replace(/^""$/, "") })]);
    const fields = [entry("Who reviews it", reviewer), inputs.map(([name, , input]) => entry(called(name), input))];
    const instance = () => Object.fromEntries(inputs.map(([name, value, input]) => [name, valueOf(input.value, value)]));
    return form("Correct its inputs", "review", fields, "Decide again, and record it", () => ({ reviewer: reviewer.value, instance: instance() }), (answer) => show(answer.id));
  }

  read();
  return h("section", { class: "panel reviews", "aria-label": "Contests and reviews" }, h("h2", {}, "Contests and reviews"), told, content);
}

/** A table of what differs from the first decision. `called(name)` names a feature, `write(number)` writes an effect. */
export function difference(found, called, write) {
  const line = (name, value) => h("tr", {}, h("th", { scope: "row" }, name), h("td", { class: "number" }, write(value)));
  const changed = Object.entries(found.attributions).filter(([, value]) => value !== 0);
  changed.sort(([, a], [, b]) => Math.abs(b) - Math.abs(a));
  return h("table", {}, h("tbody", {}, changed.map(([name, value]) => line(called(name), value)), line("Explained value", found.explained_value)));
}

const entry = (called, control) => h("label", { class: "entry" }, h("span", {}, called), control);

/** A form that lists decisions: those of an application, or all that wait for a review. `show(id)` shows one. */
export function search(model, { show, refused, signal }) {
  const application = h("input", { id: "application-id", spellcheck: "false", autocomplete: "off" });
  const isOpen = h("input", { type: "checkbox" });
  const told = h("p", { class: "problem", role: "alert" });
  const found = h("div", { "aria-live": "polite" });

  async function ask(event) {
    event.preventDefault();
    told.textContent = "";
    const asked = new URLSearchParams({ model, limit: IDS });
    if (application.value.trim()) asked.set("application_id", application.value.trim());
    if (isOpen.checked) asked.set("open", "true");
    try {
      const { decisions } = await api.get(`v1/decisions?${asked}`, { signal });
      fill(found, decisions.length ? h("ul", { class: "found" }, decisions.map(line)) : h("p", { class: "quiet" }, "There are none."));
    } catch (error) {
      fill(found);
      refused(error, told);
    }
  }

  function line(one) {
    const kind = one.kind === "contest" ? "Contest" : `${OUTCOMES[one.decision] ?? one.decision}${one.kind === "judgment" ? " by a person" : ""}`;
    const due = one.review_by && ` · review by ${when(one.review_by)}`;
    return h("li", {}, h("button", { type: "button", onclick: () => show(one.kind === "contest" ? one.reviews : one.id) }, kind), h("span", { class: "quiet" }, ` ${one.application_id ?? "no application"} · ${when(one.time)}`, due));
  }

  return h(
    "form",
    { onsubmit: ask },
    h("label", { for: "application-id", class: "quiet" }, "Or the application’s own id; empty for the latest"),
    h("div", { class: "row find" }, application, h("button", { type: "submit" }, "List them")),
    h("p", { class: "check" }, h("label", { class: "row" }, isOpen, "Only cases that wait for a review")),
    told,
    found,
  );
}
