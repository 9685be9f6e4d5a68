// An entry for a number as people write it, with what is wrong with it beside it.

import { h } from "./dom.js";
import { parseNumber } from "./parse.js";

/** Return {element, read}: `read()` returns the number, null if nothing is written, and undefined of what is no number; `isShare()`: it may be in percent. */
export function numberEntry({ changed = () => {}, isShare = () => false, ...attributes }) {
  const problem = h("span", { class: "problem", role: "alert" });
  const input = h("input", { type: "text", inputmode: "decimal", autocomplete: "off", class: "short", ...attributes, oninput: () => changed() });
  const read = () => {
    problem.textContent = "";
    input.removeAttribute("aria-invalid");
    if (!input.value.trim()) return null;
    try {
      return parseNumber(input.value, { share: isShare() });
    } catch (error) {
      problem.textContent = error.message;
      input.setAttribute("aria-invalid", "true");
      return undefined;
    }
  };
  return { element: h("span", { class: "row" }, input, problem), read };
}
