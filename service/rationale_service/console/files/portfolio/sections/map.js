// A map of rows by their explanations: those explained alike lie together.

import { fill, h } from "../../dom.js";
import { percent } from "../../format.js";
import { drawCloud } from "../../pictures/cloud.js";
import { placeOf, redrawn } from "../../pictures/canvas.js";
import { asNumbers } from "../portfolio.js";
import { principal, ranks } from "../statistics.js";
import { orderOf } from "../words.js";

const MOST_FEATURES = 64; // those that weigh most

export function makeMap(portfolio, { pick, pickAll, signal }) {
  const canvas = h("canvas", { class: "map", role: "img" });
  const box = h("div", { class: "box", hidden: true });
  const frame = h("div", { class: "frame" }, canvas, box);
  const by = h("select", { id: "map-by", onchange: () => draw() });
  const note = h("p", { class: "quiet" });
  const legend = h("span", { class: "legend" });
  let drawn = null;
  let along = null;

  function draw() {
    if (!portfolio.n || !frame.clientWidth) return;
    if (along === null || along.x.length !== portfolio.n) {
      const widest = portfolio.order().slice(0, MOST_FEATURES);
      along = principal(widest.map((j) => portfolio.explained.attributions[j]), portfolio.n);
      by.replaceChildren(
        h("option", { value: "" }, "score"),
        ...portfolio.order().filter((j) => portfolio.values[j] !== null)
          .map((j) => h("option", { value: j }, portfolio.playerTitle(j))),
      ); // prettier-ignore
      note.textContent =
        `Principal components of the attributions: these two directions hold ${percent(along.shares[0] + along.shares[1])} ` +
        "of how explanations differ. Drag over rows to pick them.";
    }
    drawn = drawCloud(canvas, frame.clientWidth, Math.min(Math.max(frame.clientWidth * 0.6, 280), 520), {
      xs: along.x, ys: along.y, n: portfolio.n, chosen: portfolio.picked.slice(0, 20), ranks: coloured(),
    }); // prettier-ignore
    canvas.setAttribute("aria-label", `${portfolio.n.toLocaleString("en")} rows by their explanations: those explained alike lie together`);
  }

  function coloured() {
    const column = by.value === "" ? null : portfolio.inWords(Number(by.value));
    fill(legend, h("span", { class: "ramp" }), ` ${column ? orderOf(column) : "low to high"}`);
    if (column) return ranks(asNumbers(column), portfolio.rows);
    return ranks(portfolio.scores, Uint32Array.from({ length: portfolio.n }, (_, i) => i));
  }

  let from = null;
  let isDrag = false;
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || event.pointerType === "touch") return;
    from = placeOf(canvas, event);
    isDrag = false;
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (from === null) return;
    const to = placeOf(canvas, event);
    box.hidden = false;
    const [left, top] = [Math.min(from[0], to[0]), Math.min(from[1], to[1])];
    const size = { left, top, width: Math.abs(to[0] - from[0]), height: Math.abs(to[1] - from[1]) };
    for (const [name, value] of Object.entries(size)) box.style[name] = `${value}px`;
  });
  canvas.addEventListener("pointerup", (event) => {
    if (from === null) return;
    const to = placeOf(canvas, event);
    box.hidden = true;
    isDrag = Math.hypot(to[0] - from[0], to[1] - from[1]) > 5;
    if (isDrag) pickAll(drawn.within(...from, ...to), "on the map");
    from = null;
  });
  canvas.addEventListener("click", (event) => {
    const place = drawn?.at(...placeOf(canvas, event));
    if (place !== null && place !== undefined && !isDrag) pick(place);
  });
  redrawn(frame, draw, signal);
  const element = h(
    "section",
    { class: "panel", "aria-labelledby": "map" },
    h("h2", { id: "map" }, "Rows that are explained alike"),
    h("div", { class: "row" }, h("label", { for: "map-by" }, "Colour"), by, legend),
    frame,
    note,
  );
  return { element, draw };
}
