// Relevance over a picture, or over anything that has rows and columns.

import { number, signed } from "../format.js";
import { fill, h } from "../dom.js";

const LISTED = 8; // of the strongest places

/**
 * A map of `heat` {rows, columns, values} over `picture` (ImageData, or null where there is none).
 *
 * Returns {element, opacity(share), width}; `look(row, column)` hears what the pointer is over.
 */
export function heatmap(heat, picture, { opacity = 0.7, look = () => {}, called = "relevance" } = {}) {
  const below = picture && painted(picture);
  const above = painted(colours(heat));
  const tall = picture ? picture.height / picture.width : heat.rows / heat.columns;
  const element = h(
    "div",
    {
      class: picture ? "heatmap over" : "heatmap",
      role: "img",
      "aria-label": summary(heat, called),
      style: { "aspect-ratio": `1 / ${tall}` },
      onpointermove: (event) => look(...place(event, element, heat)),
      onpointerdown: (event) => look(...place(event, element, heat)),
    },
    below,
    above,
  );
  const set = (share) => {
    above.style.setProperty("opacity", String(share));
    below?.style.setProperty("opacity", String(1 - 0.5 * share)); // before black: colours show on light places too
  };
  set(opacity);
  return { element, opacity: set, width: `${Math.round(Math.max(200, 400 / Math.max(tall, 0.7)))}px` };
}

/** The picture alone, small. */
export function thumbnail(picture, called) {
  return h("figure", { class: "thumbnail" }, h("div", { role: "img", "aria-label": called, style: { "aspect-ratio": `${picture.width} / ${picture.height}` } }, painted(picture)), h("figcaption", { class: "quiet" }, called));
}

/** The strongest places, as a table that is read without seeing. */
export function strongest(heat, look) {
  return h(
    "table",
    { class: "strongest" },
    h("caption", {}, "Strongest places"),
    h("thead", {}, h("tr", {}, ["Row", "Column", "Relevance"].map((name) => h("th", { scope: "col", class: "number" }, name)))),
    h(
      "tbody",
      {},
      order(heat).map((at) => {
        const [row, column] = [Math.floor(at / heat.columns), at % heat.columns];
        return h(
          "tr",
          { onpointerenter: () => look(row, column) },
          h("td", { class: "number" }, row + 1),
          h("td", { class: "number" }, column + 1),
          h("td", { class: `number ${heat.values[at] < 0 ? "lowers" : "raises"}` }, signed(heat.values[at])),
        );
      }),
    ),
  );
}

/** What the colours stand for. */
export function legend(heat) {
  const most = largest(heat.values);
  const ends = h("div", { class: "row ends" }, [-most, 0, most].map((end) => h("span", { class: "number" }, signed(end))));
  return h("div", { class: "legend", "aria-hidden": "true" }, h("div", { class: "ramp" }), ends);
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

/** Where relevance is 0 there is no colour, so that the picture below is seen. */
function colours(heat) {
  const image = new ImageData(heat.columns, heat.rows);
  const most = largest(heat.values) || 1;
  const signs = [rgb("--heat-lowers"), rgb("--heat-raises")];
  heat.values.forEach((value, at) => {
    const [r, g, b] = signs[Number(value > 0)];
    image.data.set([r, g, b, Math.round(255 * (Math.abs(value) / most) ** 0.6)], 4 * at);
  });
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
