// Fields for the features: a slider with a number, a choice, or a text.

import { h } from "./dom.js";
import { parseNumber } from "./parse.js";

/** Return { element, read }: `read` gives the values by name, null where one is missing, and what is wrong. */
export function makeFields(fields, changed) {
  const made = fields.map((field, i) => ({ field, ...MAKE[field.kind](field, `field-${i}`, changed) }));
  const read = () => {
    const values = Object.create(null); // a feature may be called __proto__
    const faults = [];
    for (const { field, get, fault } of made) {
      const found = get();
      const wrong = found instanceof Error ? found.message : faultOf(field, found);
      fault(wrong);
      if (wrong) faults.push(`${field.title}: ${wrong}`);
      values[field.name] = found;
    }
    return { values, faults };
  };
  const reset = () => made.forEach(({ put, field }) => put(field.begin));
  reset();
  return { elements: made.map(({ element }) => element), read, reset };
}

function faultOf(field, value) {
  if (value === null) return field.missing ? "" : "a value is needed";
  if (field.kind !== "number") return "";
  return field.integer && !Number.isInteger(value) ? "a whole number is needed" : "";
}

const MAKE = {
  number(field, id, changed) {
    const slider = h("input", {
      type: "range", min: field.least, max: field.most, step: field.step, "aria-labelledby": `${id}-label`,
      "data-slider": field.name,
    });
    const box = h("input", {
      type: "text", id, required: !field.missing, placeholder: field.missing ? "missing" : "",
      inputmode: "decimal", autocomplete: "off", class: "number", "data-feature": field.name,
    });
    slider.addEventListener("input", () => { box.value = slider.value; changed(); });
    const get = () => {
      if (box.value.trim() === "") return null;
      try {
        return parseNumber(box.value);
      } catch (error) {
        return error;
      }
    };
    const sized = () => { box.size = Math.min(24, Math.max(9, box.value.length + 1)); };
    box.addEventListener("input", () => { if (typeof get() === "number") slider.value = get(); sized(); changed(); });
    const put = (value) => { box.value = value ?? ""; slider.value = value ?? field.least; sized(); };
    return { ...framed(field, id, box, slider), get, put };
  },

  choice(field, id, changed) {
    const choices = field.missing ? [[null, "missing"], ...field.choices] : field.choices;
    const box = h("select", { id, "data-feature": field.name },
      choices.map(([, title], i) => h("option", { value: i }, title)));
    box.addEventListener("change", changed);
    const put = (value) => { box.value = String(Math.max(0, choices.findIndex(([each]) => each === value))); };
    return { ...framed(field, id, box), get: () => choices[Number(box.value)][0], put };
  },

  text(field, id, changed) {
    const box = h("input", { type: "text", id, "data-feature": field.name });
    box.addEventListener("input", changed);
    const get = () => (field.missing && box.value === "" ? null : box.value);
    return { ...framed(field, id, box), get, put: (value) => { box.value = value ?? ""; } };
  },
};

function framed(field, id, box, slider = null) {
  const problem = h("p", { class: "problem", id: `${id}-problem` });
  const label = h("label", { for: id, id: `${id}-label` }, field.title,
    field.unit ? h("span", { class: "quiet" }, ` ${field.unit}`) : null);
  const element = h("div", { class: "field" }, label, slider, box, problem);
  const fault = (text) => {
    problem.textContent = text;
    box.toggleAttribute("aria-invalid", Boolean(text));
    if (text) box.setAttribute("aria-invalid", "true");
    if (text) box.setAttribute("aria-describedby", problem.id);
    else box.removeAttribute("aria-describedby");
  };
  return { element, fault };
}
