// How a feature works: its value against its attribution, coloured by the feature that goes with the rest.

import { h, visible } from "../../dom.js";
import { drawCloud } from "../../pictures/cloud.js";
import { placeOf, redrawn } from "../../pictures/canvas.js";
import { asNumbers } from "../portfolio.js";
import { descending, interactions, ranks } from "../statistics.js";
import { orderOf } from "../words.js";

const MOST_WORDS = 40;

export function makeDependence(portfolio, { pick, signal }) {
  const canvas = h("canvas", { role: "img" });
  const frame = h("div", { class: "frame" }, canvas);
  const features = portfolio.values.map((column, j) => (column === null ? -1 : j)).filter((j) => j >= 0);
  const option = (j) => h("option", { value: j }, portfolio.playerTitle(j));
  const along = h("select", { id: "along", onchange: () => choose(Number(along.value)) });
  const by = h("select", { id: "by", onchange: () => draw() });
  const note = h("p", { class: "quiet" });
  const legend = h("p", { class: "legend" });
  let drawn = null;
  let chosen = -1;

  function choose(j) {
    if (portfolio.values[j] === null) return;
    chosen = j;
    along.value = String(j);
    suggest();
    draw();
  }

  function suggest() {
    const others = portfolio.values.map((column, j) => (j === chosen ? null : asNumbers(column)));
    const strengths = interactions(
      asNumbers(portfolio.values[chosen]), portfolio.explained.attributions[chosen], others, portfolio.rows,
    ); // prettier-ignore
    const [first] = descending(strengths);
    if (strengths[first] > 0) {
      by.value = String(first);
      note.textContent = visible(
        `Of what ${portfolio.playerTitle(chosen)} does not explain by itself, most goes with ${portfolio.playerTitle(first)}: ` +
          "where colours part at one value, the two interact.",
      );
    } else {
      by.value = "";
      note.textContent = "";
    }
  }

  function draw() {
    if (!frame.clientWidth) return;
    if (chosen < 0) {
      if (!portfolio.n || !features.length) return;
      along.replaceChildren(...features.map(option));
      by.replaceChildren(h("option", { value: "" }, "nothing"), ...features.map(option));
      choose(portfolio.order().find((j) => features.includes(j)));
      return;
    }
    const column = portfolio.inWords(chosen);
    const other = by.value === "" ? null : portfolio.inWords(Number(by.value));
    const name = portfolio.playerTitle(chosen);
    const numbers = asNumbers(column);
    const xs = Float64Array.from(portfolio.rows.subarray(0, portfolio.n), (row) => numbers[row]);
    const words = column.kind === "text" ? column.words.slice(0, MOST_WORDS) : null;
    if (words) xs.forEach((code, i) => (xs[i] = code < MOST_WORDS ? code : NaN));
    drawn = drawCloud(canvas, frame.clientWidth, Math.min(Math.max(frame.clientWidth * 0.55, 280), 460), {
      xs, ys: portfolio.explained.attributions[chosen], n: portfolio.n, words,
      ranks: other === null ? null : ranks(asNumbers(other), portfolio.rows),
      labels: { x: name, y: ["attribution", portfolio.write.unit].filter(Boolean).join(", ") }, tick: portfolio.write.effectTick, chosen: portfolio.picked.slice(0, 20),
    }); // prettier-ignore
    canvas.setAttribute("aria-label", `Attribution of ${name} against its value, for ${portfolio.n.toLocaleString("en")} rows`);
    legend.replaceChildren(
      ...(other === null
        ? []
        : ["Colour: ", portfolio.playerTitle(Number(by.value)), " ", h("span", { class: "ramp" }), ` ${orderOf(other)}`]),
    );
  }

  canvas.addEventListener("click", (event) => {
    const place = drawn?.at(...placeOf(canvas, event));
    if (place !== null && place !== undefined) pick(place);
  });
  redrawn(frame, draw, signal);
  const element = h(
    "section",
    { class: "panel", "aria-labelledby": "dependence" },
    h("h2", { id: "dependence" }, "How a feature works"),
    h("div", { class: "row" }, h("label", { for: "along" }, "Feature"), along, h("label", { for: "by" }, "Colour"), by),
    frame,
    legend,
    note,
  );
  return { element, draw, choose };
}
