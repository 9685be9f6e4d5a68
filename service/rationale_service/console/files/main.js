// The shell: models, explainers, views and the key; each view fills the page for what the address says.

import * as address from "./address.js";
import * as api from "./api.js";
import { fill, h } from "./dom.js";
import * as decisions from "./views/decisions.js";
import * as explain from "./views/explain.js";
import * as media from "./views/media.js";
import * as portfolio from "./views/portfolio.js";
import * as references from "./views/references.js";

// A view exports `title`, `show(root, address, context)` and, where it is not for every model,
// `unavailable(model)`: why it has nothing for this one, empty where it has.
const VIEWS = { explain, decisions, references, portfolio, media };
const FIRST = "explain";
const THEME = "rationale.theme";

const main = document.getElementById("main");
const known = { key: null, models: null };
let leaving = new AbortController();
let isNew = false; // the model was chosen just now: of the views one that shows it

/** Show what the address says. */
async function open() {
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  const at = address.read();
  if (!address.isWhole()) return damaged(at);
  isNew ||= !Object.hasOwn(VIEWS, at.view);
  try {
    await load(signal);
    const model = await chosen(at, signal);
    if (signal.aborted) return;
    if (isNew) at.view = showing(at.view, model);
    isNew = false;
    address.go({ view: at.view, model: model.model, explainer: at.explainer, digest: at.digest || model.digest });
    const now = address.read();
    const view = VIEWS[now.view];
    head(now, model);
    document.title = `${view.title} · ${model.model} · Rationale`;
    const why = view.unavailable?.(model);
    if (why) {
      fill(main, panel(view.title, why));
      return;
    }
    const root = h("section", { class: `view ${now.view}`, "aria-label": view.title });
    fill(main, newView(now, model), root);
    await view.show(root, now, { models: known.models, model, signal, go: address.go, say, failed });
  } catch (error) {
    if (!signal.aborted) failed(error);
  }
}

/** The view that is looked at, if it shows this model; else the first that does. */
function showing(view, model) {
  const names = [view, ...Object.keys(VIEWS)].filter((name) => Object.hasOwn(VIEWS, name));
  return names.find((name) => !VIEWS[name].unavailable?.(model)) ?? FIRST;
}

/** Load what there is, with the key of now. */
async function load(signal) {
  if (known.models !== null && known.key === api.key()) return;
  known.key = api.key();
  known.models = null;
  known.models = await api.models({ signal });
}

/** The model that the address names, else the first that this key may have explained. */
async function chosen(at, signal) {
  if (at.model) return api.features(at.model, at.explainer, { signal });
  let refused = new api.Problem(
    404,
    "No model here can be explained",
    "Compile one with its explanation: `rationale compile MODEL.onnx --references ROWS.csv --name NAME`.",
  );
  for (const name of known.models.explainable) {
    try {
      return await api.features(name, "", { signal });
    } catch (error) {
      if (error.status !== 403 || error.scope) throw error;
      refused = error; // a key for some models: perhaps for the next one
    }
  }
  throw refused;
}

/** A warning where the address was written for another explainer than answers now. */
function newView(at, model) {
  if (!at.digest || at.digest === model.digest) return null;
  return h(
    "p",
    { class: "panel warning", role: "note" },
    "This address was made when another explanation answered. Figures may differ from those that were seen then. ",
    h("a", { href: address.changed({ digest: model.digest }) }, "Go on with the present one"),
  );
}

// --- the head of the page ---------------------------------------------------------------------------------

function head(at, model) {
  const names = known.models?.explainable ?? [];
  fill(
    document.getElementById("top"),
    h("a", { class: "brand", href: "#explain" }, h("img", { src: "icon.svg", alt: "", width: 24, height: 24 }), "Rationale"),
    model && [
      choice("Model", names, model.model, (name) => {
        isNew = true;
        location.hash = `${at.view}?${new URLSearchParams({ model: name })}`;
      }),
      model.explainers.length > 1 &&
        choice(
          "Explainer",
          model.explainers.map((one) => one.name),
          model.explainer,
          (name) => move({ explainer: name, digest: "" }),
          Object.fromEntries(model.explainers.map((one) => [one.name, `${one.name} (${one.method})`])),
        ),
      h("nav", { "aria-label": "Views" }, links(at, model)),
    ],
    h(
      "div",
      { class: "tools" },
      h("button", { type: "button", onclick: theme, "aria-label": "Light or dark" }, "◐"),
      h("button", { type: "button", onclick: () => fill(main, keyForm()) }, api.key() ? "Key …" : "Enter a key"),
    ),
  );
}

function links(at, model) {
  return Object.entries(VIEWS)
    .filter(([name, view]) => name === at.view || !view.unavailable?.(model))
    .map(([name, view]) => {
      const href = () => address.changed({ view: name });
      const renewed = (event) => event.currentTarget.setAttribute("href", href()); // the row may be another one by now
      return h("a", { href: href(), onpointerdown: renewed, onclick: renewed, "aria-current": name === at.view ? "page" : null }, view.title);
    });
}

const move = (changes) => (location.hash = address.changed(changes));

function choice(label, names, chosenName, onchange, called = {}) {
  const listed = names.includes(chosenName) ? names : [chosenName, ...names];
  return h(
    "label",
    { class: "choice" },
    h("span", {}, label),
    h(
      "select",
      { onchange: (event) => onchange(event.target.value) },
      listed.map((name) => h("option", { value: name, selected: name === chosenName }, called[name] ?? name)),
    ),
  );
}

function theme() {
  const dark = getComputedStyle(document.documentElement).colorScheme === "dark";
  const isDark = document.documentElement.dataset.theme ? dark : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = isDark ? "light" : "dark";
  localStorage.setItem(THEME, document.documentElement.dataset.theme);
}

// --- what stands in place of a view -----------------------------------------------------------------------

function panel(title, ...content) {
  return h("section", { class: "panel" }, h("h1", {}, title), content.map((one) => (one instanceof Node ? one : h("p", {}, one))));
}

/** What an address named can only be guessed once a part of it is lost: nothing of it is shown. */
function damaged(at) {
  head(at, null);
  document.title = "Rationale";
  fill(
    main,
    panel(
      "This address is damaged",
      "A part of it was lost or changed, so the page shows nothing. Request the address again, and copy all of it.",
      h("p", {}, h("a", { href: `#${Object.hasOwn(VIEWS, at.view) ? at.view : FIRST}` }, "Start again with a typical row")),
    ),
  );
}

/** Show what went wrong in place of the view: `error` is whatever a request threw. */
function failed(error) {
  if (error.name === "AbortError") return;
  if (!(error instanceof api.Problem)) console.error(error);
  if (!document.getElementById("top").childElementCount) head(address.read(), null);
  if (error.status === 401) return void fill(main, keyForm(error));
  if (error.status === 403) {
    const needed = error.scope
      ? `What you look at needs a key with the scope ${error.scope.replaceAll(" ", " or ")}.`
      : "";
    return void fill(main, panel(error.title, needed, error.detail, keyForm(error)));
  }
  const again = h("button", { type: "button", onclick: open }, "Try again");
  fill(main, panel(error.title ?? "Something is broken in this page", error.detail ?? error.message, again));
}

function keyForm(problem) {
  const field = h("input", { type: "password", id: "key", autocomplete: "off", spellcheck: "false", value: api.key() });
  const problemText = h("p", { class: "problem", role: "alert" }, problem?.status === 401 && api.key() ? problem.detail : "");
  const form = h(
    "form",
    {
      class: "panel key",
      onsubmit: (event) => {
        event.preventDefault();
        try {
          api.keep(field.value);
          open();
        } catch (error) {
          problemText.textContent = error.message;
        }
      },
    },
    problem === undefined || problem.status === 401
      ? [
          h("h1", {}, "A key is needed"),
          h("p", {}, "This gateway answers callers with a key that has the scope explain. Whoever runs it makes one:"),
          h("pre", {}, "rationale keys new NAME --scope explain --file keys.toml"),
        ]
      : h("h2", {}, "Another key"),
    h("label", { for: "key" }, "Key"),
    field,
    problemText,
    h("p", { class: "quiet" }, "It is kept in this tab until that is closed, and sent to this gateway alone."),
    h("button", { type: "submit", class: "first" }, "Go on"),
    h("button", { type: "button", onclick: () => (api.keep(""), open()) }, "Without a key"),
  );
  queueMicrotask(() => field.focus());
  return form;
}

/** Tell whoever does not see the page. */
function say(text) {
  document.getElementById("said").textContent = text;
}

document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
if (localStorage.getItem(THEME)) document.documentElement.dataset.theme = localStorage.getItem(THEME);
addEventListener("hashchange", open);
open();
