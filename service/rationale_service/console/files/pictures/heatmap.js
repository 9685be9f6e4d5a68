// Relevance over a picture, or over anything that has rows and columns.

import { number, signed } from "../format.js";
import { fill, h } from "../dom.js";

const LISTED = 8; // of the strongest places
const PALEST = 0.35; // of what is drawn at all
const PALE = [96, 236]; // the dark and the light end of a picture in grey
const SHADES = 20; // of a legend, on each side

/**
 * The sums of a heat {rows, columns, values} over squares of `step` by `step` places, as one that has them in place of the
 * places: {…, step, of: {rows, columns}}. They add up to what the places add up to.
 */
export function regions({ rows, columns, values }, step) {
  const across = Math.ceil(columns / step);
  const sums = Array(Math.ceil(rows / step) * across).fill(0);
  values.forEach((value, at) => (sums[Math.floor(Math.floor(at / columns) / step) * across + Math.floor((at % columns) / step)] += value));
  return { rows: sums.length / across, columns: across, values: sums, step, of: { rows, columns } };
}

/** How opaque a value is drawn: not at all below a share of the largest, then the more the larger it is. */
export function opacityOf(value, most, least) {
  const share = most ? Math.abs(value) / most : 0;
  return share && share >= least ? PALEST + (1 - PALEST) * share : 0;
}

/**
 * A map of a heat over a `picture` in grey (ImageData, or null where there is none). Of values below the share `least` of
 * the largest nothing is drawn, so that the picture is seen there.
 *
 * Returns {element, width}; `look(row, column)` hears which place the pointer is over.
 */
export function heatmap(heat, picture, { least = 0, look = () => {}, called = "relevance" } = {}) {
  const { rows, columns } = heat.of ?? heat;
  const tall = picture ? picture.height / picture.width : rows / columns;
  const element = h(
    "div",
    {
      class: picture ? "heatmap over" : "heatmap",
      role: "img",
      "aria-label": summary(heat, called),
      style: { "aspect-ratio": `1 / ${tall}` },
      onpointermove: (event) => look(...place(event, element, { rows, columns })),
      onpointerdown: (event) => look(...place(event, element, { rows, columns })),
    },
    picture && painted(grey(picture)),
    painted(colours(heat, least)),
  );
  return { element, width: `${Math.round(Math.max(200, 400 / Math.max(tall, 0.7)))}px` };
}

/** The picture alone, in its own colours. */
export function plain(picture, called) {
  return h("div", { class: "heatmap", role: "img", "aria-label": called, style: { "aspect-ratio": `${picture.width} / ${picture.height}` } }, painted(picture));
}

/** The value at a place, and which places it is of. */
export function valueAt(heat, row, column) {
  const [own, step] = [heat.of ?? heat, heat.step ?? 1];
  const [top, left] = [Math.floor(row / step), Math.floor(column / step)];
  return { value: heat.values[top * heat.columns + left], rows: span(top, step, own.rows), columns: span(left, step, own.columns) };
}

/** The places of a region along an axis, from 1. */
function span(at, step, most) {
  const [first, last] = [at * step + 1, Math.min((at + 1) * step, most)];
  return first === last ? String(first) : `${first}–${last}`;
}

/** The strongest places, as a table that is read without seeing. */
export function strongest(heat, look) {
  return h(
    "table",
    { class: "strongest" },
    h("caption", {}, heat.step ? "Strongest regions" : "Strongest places"),
    h("thead", {}, h("tr", {}, [heat.step ? "Rows" : "Row", heat.step ? "Columns" : "Column", "Relevance"].map((name) => h("th", { scope: "col", class: "number" }, name)))),
    h(
      "tbody",
      {},
      order(heat).map((at) => {
        const step = heat.step ?? 1;
        const [row, column] = [Math.floor(at / heat.columns) * step, (at % heat.columns) * step];
        const { rows, columns } = valueAt(heat, row, column);
        return h(
          "tr",
          { onpointerenter: () => look(row, column) },
          h("td", { class: "number" }, rows),
          h("td", { class: "number" }, columns),
          h("td", { class: `number ${heat.values[at] < 0 ? "lowers" : "raises"}` }, signed(heat.values[at])),
        );
      }),
    ),
  );
}

/** What the colours stand for: as strong as they are drawn, from the lowest value over nothing to the largest. */
export function legend(heat, least) {
  const most = largest(heat.values);
  const steps = Array.from({ length: 2 * SHADES + 1 }, (_, i) => (i - SHADES) / SHADES);
  const shade = (share) => `color-mix(in srgb, var(--heat-${share < 0 ? "lowers" : "raises"}) ${100 * opacityOf(share, 1, least)}%, transparent)`;
  const ends = [["lowers the value", -most], [least ? `less than ${signed(least * most).replace("+", "±")} is not drawn` : "", 0], ["raises the value", most]];
  return h(
    "div",
    { class: "heat-key", "aria-hidden": "true" },
    h("div", { class: "shades" }, steps.map((share) => h("span", { style: { background: shade(share) } }))),
    h("div", { class: "row ends" }, ends.map(([text, end]) => h("span", {}, end ? [h("strong", { class: "number" }, signed(end)), h("br"), text] : text))),
  );
}

function order(heat) {
  const places = [...heat.values.keys()].filter((at) => heat.values[at]);
  return places.sort((a, b) => Math.abs(heat.values[b]) - Math.abs(heat.values[a])).slice(0, LISTED);
}

function summary(heat, called) {
  const [first] = order(heat);
  const where = first === undefined ? "none is other than 0" : `the strongest is ${number(heat.values[first])} in row ${Math.floor(first / heat.columns) + 1}, column ${(first % heat.columns) + 1}`;
  return `${called} over ${heat.rows} rows and ${heat.columns} columns: ${where}`;
}

export const largest = (values) => values.reduce((most, value) => Math.max(most, Math.abs(value)), 0);

function place(event, element, heat) {
  const box = element.getBoundingClientRect();
  const [y, x] = [(event.clientY - box.top) / box.height, (event.clientX - box.left) / box.width];
  const within = (share, count) => Math.min(count - 1, Math.max(0, Math.floor(share * count)));
  return [within(y, heat.rows), within(x, heat.columns)];
}

function painted(image) {
  const canvas = h("canvas", { width: image.width, height: image.height });
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

/** The picture without its colours, and paler: none of it is taken for relevance. */
function grey(picture) {
  const image = new ImageData(picture.width, picture.height);
  for (let at = 0; at < image.data.length; at += 4) {
    const [r, g, b] = picture.data.subarray(at, at + 3);
    image.data.fill(Math.round(PALE[0] + ((0.299 * r + 0.587 * g + 0.114 * b) / 255) * (PALE[1] - PALE[0])), at, at + 3);
    image.data[at + 3] = 255;
  }
  return image;
}

function colours(heat, least) {
  const { rows, columns } = heat.of ?? heat;
  const image = new ImageData(columns, rows);
  const most = largest(heat.values);
  const signs = [rgb("--heat-lowers"), rgb("--heat-raises")];
  for (let at = 0; at < rows * columns; at += 1) {
    const { value } = valueAt(heat, Math.floor(at / columns), at % columns);
    image.data.set([...signs[Number(value > 0)], Math.round(255 * opacityOf(value, most, least))], 4 * at);
  }
  return image;
}

function rgb(name) {
  const text = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  return [1, 3, 5].map((at) => Number.parseInt(text.slice(at, at + 2), 16));
}

/** A list of numbers where there is no picture of them: the strongest, with their places. */
export function listed(values, shape, look = () => {}) {
  const heat = { rows: 1, columns: values.length, values };
  const most = largest(values) || 1;
  const items = order(heat).map((at) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, `[${indices(at, shape).join(", ")}]`),
      h("td", {}, h("meter", { min: 0, max: most, value: Math.abs(values[at]), "aria-label": "size" })),
      h("td", { class: `number ${values[at] < 0 ? "lowers" : "raises"}` }, signed(values[at])),
    ),
  );
  return fill(h("table", { class: "strongest" }), h("caption", {}, "Strongest values"), h("tbody", {}, items));
}

function indices(at, shape) {
  const found = [];
  for (const n of [...shape].reverse()) {
    found.unshift(at % n);
    at = Math.floor(at / n);
  }
  return found;
}
