// Tokens in their order, shaded by value; each has its number in writing, so that colour is not needed.

import { signed } from "../format.js";
import { h } from "../dom.js";
import { largest } from "./heatmap.js";

const MOST = 46; // percent of colour: the text on it stays readable in light and dark

/** `texts` and `values` of the same length; `quiet` are places of padding. */
export function tokens(texts, values, { quiet = [] } = {}) {
  const most = largest(values) || 1;
  return h(
    "ol",
    { class: "tokens", "aria-label": "Tokens, with what each adds" },
    texts.map((text, i) => {
      const share = Math.round((MOST * Math.abs(values[i])) / most);
      const kind = values[i] < 0 ? "lowers" : values[i] > 0 ? "raises" : "neither";
      return h(
        "li",
        { class: quiet[i] ? `${kind} padding` : kind, style: { "--share": `${share}%` } },
        h("span", { class: "word" }, text),
        h("span", { class: "value" }, signed(values[i])),
      );
    }),
  );
}
