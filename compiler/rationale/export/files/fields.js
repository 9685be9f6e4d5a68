// Fields for the features: a slider with a number, a choice, or a text.

import { h } from "./dom.js";
import { choicesOf, labelOf, parsed, stepOf, tidy, titleOf } from "./values.js";

/** Return { elements, read, reset }: `read` gives the values by name, null where one is missing, and what is wrong. */
export function makeFields(fields, changed) {
  const made = fields.map((field, i) => ({ field, ...control(field)(field, `field-${i}`, changed) }));
  const read = () => {
    const values = Object.create(null); // a feature may be called __proto__
    const faults = [];
    for (const { field, get, fault } of made) {
      fault("");
      try {
        values[field.name] = get();
      } catch (error) {
        fault(error.message);
        faults.push(error.message);
      }
    }
    return { values, faults };
  };
  const reset = () => made.forEach(({ put, field }) => put(field.begin ?? null));
  reset();
  return { elements: made.map(({ element }) => element), read, reset };
}

const control = (field) => (field.choices ? choiceBox : field.kind === "text" ? textBox : numberBox);

function numberBox(field, id, changed) {
  const { least, most } = field;
  const slider = h("input", {
    type: "range", min: least, max: most, step: stepOf(field, most - least), "aria-labelledby": `${id}-label`, "data-slider": field.name,
  });
  const box = h("input", {
    type: "text", id, required: !field.missing, placeholder: field.missing ? "missing" : "",
    inputmode: "decimal", autocomplete: "off", class: "number", "data-feature": field.name,
  });
  const get = () => parsed(field, box.value);
  const sized = () => { box.size = Math.min(24, Math.max(9, box.value.length + 1)); };
  slider.addEventListener("input", () => { box.value = tidy(Number(slider.value), field, most - least); changed(); });
  box.addEventListener("input", () => {
    try {
      slider.value = get() ?? slider.value;
    } catch {
      // it is told when the row is read
    }
    sized();
    changed();
  });
  const put = (value) => { box.value = value ?? ""; slider.value = value ?? least; sized(); };
  return { ...framed(field, id, box, slider), get, put };
}

function choiceBox(field, id, changed) {
  const values = [...(field.missing ? [null] : []), ...choicesOf(field)];
  const name = (value) => (value === null ? "missing" : labelOf(field, value));
  const box = h("select", { id, "data-feature": field.name }, values.map((value, i) => h("option", { value: i }, name(value))));
  box.addEventListener("change", changed);
  const put = (value) => { box.value = String(Math.max(0, values.indexOf(value))); };
  return { ...framed(field, id, box), get: () => values[Number(box.value)], put };
}

function textBox(field, id, changed) {
  const box = h("input", { type: "text", id, "data-feature": field.name });
  box.addEventListener("input", changed);
  const get = () => (field.missing && box.value === "" ? null : box.value);
  return { ...framed(field, id, box), get, put: (value) => { box.value = value ?? ""; } };
}

function framed(field, id, box, slider = null) {
  const problem = h("p", { class: "problem", id: `${id}-problem` });
  const label = h("label", { for: id, id: `${id}-label` }, titleOf(field),
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
