// A search among many features, for whatever is drawn of each.

import { h } from "./dom.js";

export const MANY = 40; // from which on features are searched, and scroll by themselves

/** A field that hides those elements whose field has another name and title than is looked for. */
export function searchAmong(fields, elements) {
  const told = h("span", { class: "quiet", role: "status" }, `${fields.length} features`);
  const input = h("input", {
    type: "search",
    "aria-label": "Search features",
    placeholder: "Search features",
    oninput: () => {
      const wanted = input.value.trim().toLowerCase();
      const isFound = ({ name, title = "" }) => `${name} ${title}`.toLowerCase().includes(wanted);
      fields.forEach((field, i) => (elements[i].hidden = !isFound(field)));
      told.textContent = `${fields.filter(isFound).length} of ${fields.length} features`;
    },
  });
  return h("p", { class: "row" }, input, told);
}
