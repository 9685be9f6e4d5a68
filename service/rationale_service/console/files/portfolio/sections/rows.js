// Rows beside each other: a heatmap of their attributions, and the way of each from the base value to its score.

import { h, visible } from "../../dom.js";
import { placeOf, redrawn } from "../../pictures/canvas.js";
import { drawPaths } from "../../pictures/paths.js";
import { drawRowMap } from "../../pictures/rowmap.js";
import { ruleOf } from "../../score.js";
import { principal } from "../statistics.js";
import { thinned } from "./curves.js";

const MOST_ROWS = 200;
const MOST_FEATURES = 15; // of more, the others are one line
const FULL = 0.98; // of the sizes of attributions: those beyond have the full colour too

export function makeRows(portfolio, { pick, signal }) {
  const orders = { score: "what is explained", alike: "how alike they are explained" };
  const by = h("select", { id: "rows-by", onchange: () => draw() }, Object.entries(orders).map(([value, name]) => h("option", { value }, name)));
  const map = h("div", { class: "frame", id: "rows-map" });
  const paths = h("div", { class: "frame", id: "rows-paths" });
  const tip = h("p", { class: "quiet tip" });
  const legend = h("p", { class: "legend" });
  const note = h("p", { class: "quiet" });

  function draw() {
    if (!portfolio.n || !portfolio.isWhole || !map.clientWidth) return;
    const of = portfolio.picked.length > 1 ? portfolio.picked : Array.from({ length: portfolio.n }, (_, i) => i);
    const { features, places } = table(portfolio, thinned(of, MOST_ROWS), by.value);
    const { bases, values } = portfolio.explained;
    const ends = places.map((place) => values[place]);
    const sizes = features.flatMap((feature) => feature.values.map(Math.abs)).sort((a, b) => a - b);
    const most = sizes[Math.floor(FULL * (sizes.length - 1))] || sizes.at(-1);
    const width = map.clientWidth;
    const which = `${places.length} ${portfolio.picked.length > 1 ? "of the picked " : ""}rows`;
    const drawn = drawRowMap({ width, features, ends, most, tick: portfolio.write.tick, label: `Attributions of ${which}: a column for each row, a line for each feature` });
    drawn.element.addEventListener("click", (event) => pick(places[drawn.at(placeOf(drawn.element, event)[0])]));
    drawn.element.addEventListener("mousemove", (event) => {
      const i = drawn.at(placeOf(drawn.element, event)[0]);
      tip.textContent = visible(`Row ${portfolio.rows[places[i]] + 1}: ${portfolio.write.value(ends[i], 4)}`);
    });
    map.replaceChildren(drawn.element);
    const rule = ruleOf(portfolio.features, null, null);
    const ways = places.map((place, i) => wayOf(features, i, Number.isNaN(bases[place]) ? 0 : bases[place]));
    paths.replaceChildren(
      drawPaths({ width, tick: portfolio.write.tick, names: features.map(({ name }) => name), paths: ways, threshold: rule?.explained ? rule.threshold : null, label: `The path of ${which} from the base value to what is explained` }),
    );
    legend.textContent = `Red raises, blue lowers; full colour from ${portfolio.write.effect(most)} and ${portfolio.write.effect(-most)} on. The line above is what is explained. A click picks the row.`;
    note.textContent = `A line for each of ${which}, from the base value below to what is explained above: red if that is more, blue if it is not${rule?.explained ? "; dashed: the threshold" : ""}.`;
  }

  redrawn(map, draw, signal);
  const element = h(
    "section",
    { class: "panel", "aria-labelledby": "rows" },
    h("h2", { id: "rows" }, "Rows beside each other"),
    h("div", { class: "row" }, h("label", { for: "rows-by" }, "In the order of"), by),
    map,
    legend,
    tip,
    h("h3", {}, "The path of each row"),
    paths,
    note,
  );
  return { element, draw };
}

/** The places in their order, and the features that weigh most, the others together: {features: [{name, values}], places}. */
function table(portfolio, places, by) {
  const order = portfolio.order();
  const shown = order.length > MOST_FEATURES + 1 ? order.slice(0, MOST_FEATURES) : order;
  const others = order.slice(shown.length);
  const { attributions, values } = portfolio.explained;
  const of = (j) => places.map((place) => attributions[j][place]);
  const features = shown.map((j) => ({ name: portfolio.playerTitle(j), values: of(j) }));
  if (others.length) features.push({ name: `${others.length} others`, values: places.map((place) => others.reduce((sum, j) => sum + attributions[j][place], 0)) });
  const keys = by === "alike" ? principal(features.map((feature) => Float64Array.from(feature.values)), places.length).x : places.map((place) => values[place]);
  const turned = [...places.keys()].sort((a, b) => keys[a] - keys[b] || a - b);
  return { places: turned.map((i) => places[i]), features: features.map(({ name, values: own }) => ({ name, values: turned.map((i) => own[i]) })) };
}

/** From the base value on, the last feature first. */
export function wayOf(features, i, base) {
  const way = [base];
  for (const { values } of features.toReversed()) way.push(way.at(-1) + values[i]);
  return way;
}
