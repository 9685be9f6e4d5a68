// Classes of a classifier: what each is called, and its score.

import { h } from "../dom.js";
import { writers } from "../format.js";

const MOST_CLASSES = 10;
const ONE_PERCENT = 0.01; // has a digit, and two decimals with it

/** How a target is called: by its class, else by the element of the output, whose row has `size` of them. */
export function elementName({ output, size, classNames = [] }, target) {
  if (size === 1 || target === null || target === "predicted") return output;
  return classNames.length ? `${output} of class ${classOf(classNames, target)}` : `${output} [${target}]`;
}

/** The same beside others of its output: of classes their names alone, which are long. */
export function optionName(element, target) {
  const isClass = element.size > 1 && element.classNames?.length && target !== "predicted";
  return isClass ? classOf(element.classNames, target) : elementName(element, target);
}

const classOf = (names, target) => String(target).split("-").map((end) => names[end]).join(" against ");

/** The scores of all classes, the largest first; of many those, and how many more there are. `isShare`: in percent, with bars. */
export function classTable({ names, values, explained, isShare }) {
  const write = writers(isShare ? [ONE_PERCENT] : values, [], isShare).value;
  const sorted = values.map((value, i) => ({ value, i })).sort((a, b) => b.value - a.value || a.i - b.i);
  const shown = sorted.length > MOST_CLASSES + 1 ? sorted.slice(0, MOST_CLASSES) : sorted;
  const rest = sorted.length - shown.length;
  const line = ({ value, i }) =>
    h(
      "tr",
      { class: String(explained).split("-").includes(String(i)) ? "explained" : null },
      h("th", { scope: "row" }, names[i] ?? `class ${i}`),
      isShare && h("td", { class: "share", "aria-hidden": "true" }, h("span", { style: { width: `${Math.min(Math.max(value, 0), 1) * 100}%` } })),
      h("td", { class: "number" }, write(value)),
    );
  return h(
    "table",
    { class: "classes" },
    h("caption", {}, `Scores of the ${values.length} classes`),
    h("tbody", {}, shown.map(line), rest > 0 && h("tr", {}, h("th", { scope: "row" }, `${rest} others, each at most`), isShare && h("td", {}), h("td", { class: "number" }, write(sorted[MOST_CLASSES].value)))),
  );
}
