// Where the row comes from: the references' typical values, a file, or what was saved under a name.

import { readRows } from "../csv.js";
import { fill, h } from "../dom.js";
import { fields, ofTable, read } from "../rows.js";
import { typical } from "../values.js";

const KEPT = "rationale.rows"; // of this tab alone, as its key: rows may be people's

/** Buttons above the form; `take(row)` puts a row into it, `present()` is the row that is there. */
export function source(model, { take, present }) {
  const trouble = h("p", { class: "problem", role: "alert" });
  const picker = h("span", { class: "row", hidden: true });
  const file = h("input", { type: "file", accept: ".csv,text/csv,text/plain", class: "unseen", tabindex: "-1", "aria-label": "A CSV file" });
  file.addEventListener("change", async () => {
    const [chosen] = file.files;
    if (chosen) await opened(chosen, { model, take, trouble, picker });
    file.value = ""; // the same file may come again, mended
  });
  return [
    h(
      "div",
      { class: "row start" },
      h("h2", {}, "The row"),
      h("button", { type: "button", onclick: () => take(typical(fields(model))) }, "Typical"),
      h("button", { type: "button", onclick: () => file.click() }, "From a CSV …"),
      file,
      picker,
      saved(model, { take, present }),
    ),
    trouble,
  ];
}

async function opened(file, { model, take, trouble, picker }) {
  let columns;
  const rows = [];
  const begin = (names) => {
    columns = names;
    return (texts) => rows.push(texts);
  };
  try {
    await readRows(file, begin);
  } catch (error) {
    trouble.textContent = `${file.name}: ${error.message}`;
    return;
  }
  const pick = h("input", { type: "number", min: 1, max: rows.length, "aria-label": `Row of ${file.name}`, onchange: () => show(Number(pick.value)) });
  const step = (by) => () => show(Math.min(rows.length, Math.max(1, Number(pick.value) + by)));
  const show = (place) => {
    pick.value = place;
    try {
      if (!rows[place - 1]) throw new Error(`there are rows 1 to ${rows.length}`);
      take(ofTable(fields(model), columns, rows[place - 1]));
      trouble.textContent = "";
    } catch (error) {
      trouble.textContent = `${file.name}, row ${place}: ${error.message}`;
    }
  };
  fill(
    picker,
    h("button", { type: "button", onclick: step(-1), "aria-label": "The row before" }, "‹"),
    pick,
    h("button", { type: "button", onclick: step(1), "aria-label": "The next row" }, "›"),
    ` of ${rows.length}`,
  );
  picker.hidden = false;
  show(1);
}

// --- saved rows -------------------------------------------------------------------------------------------

function kept() {
  try {
    const found = JSON.parse(sessionStorage.getItem(KEPT) ?? "[]");
    return Array.isArray(found) ? found : [];
  } catch {
    return [];
  }
}

function saved(model, { take, present }) {
  const place = h("span", { class: "row" });
  const own = () => kept().filter((one) => one.model === model.model);
  const paint = () => {
    const name = h("input", { type: "text", maxlength: 60, size: 12, placeholder: "a name", "aria-label": "Save the row as" });
    const save = (event) => {
      event.preventDefault();
      const called = name.value.trim();
      if (!called) return name.focus();
      const others = kept().filter((one) => one.model !== model.model || one.name !== called);
      sessionStorage.setItem(KEPT, JSON.stringify([...others, { model: model.model, name: called, row: present() }]));
      return paint();
    };
    const load = (event) => {
      const found = own()[Number(event.target.value)];
      if (found) take(read(fields(model), JSON.stringify(found.row)));
    };
    const list = own().map((one, i) => h("option", { value: i }, one.name));
    fill(
      place,
      list.length > 0 && h("select", { "aria-label": "Saved rows", onchange: load }, h("option", { value: "none" }, "Saved …"), list),
      h("form", { class: "row", onsubmit: save }, name, h("button", { type: "submit" }, "Save")),
    );
  };
  paint();
  return place;
}
