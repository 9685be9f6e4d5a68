// Most important features: mean |attribution| as bars, every row's attribution as a beeswarm.

import { h, visible } from "../../dom.js";
import { writers } from "../../format.js";
import { drawBeeswarm } from "../../pictures/beeswarm.js";
import { placeOf, redrawn } from "../../pictures/canvas.js";
import { described } from "../words.js";

const MOST = 30;
const MOST_MARKED = 5; // rows, on every line
const ON_THE_WAY = 20_000; // rows of a beeswarm before all are there

/** `choose(player)` is called for the feature that is clicked, `pick(place)` for the row. */
export function makeWeights(portfolio, { choose, pick, signal }) {
  const bars = h("ol", { class: "weights" });
  const canvas = h("canvas", { class: "beeswarm", role: "img" });
  const frame = h("div", { class: "frame" }, canvas);
  let drawn = null;
  let shown = [];

  function draw() {
    const order = portfolio.order();
    shown = order.slice(0, MOST);
    drawBars();
    const n = portfolio.isWhole ? portfolio.n : Math.min(portfolio.n, ON_THE_WAY);
    const players = shown.map((j) => ({
      name: portfolio.playerTitle(j),
      attributions: portfolio.explained.attributions[j],
      ranks: portfolio.ranks(j),
    }));
    if (!players.length || !n || !frame.clientWidth) return;
    drawn = drawBeeswarm(canvas, frame.clientWidth, { players, n, chosen: portfolio.picked.length > MOST_MARKED ? [] : portfolio.picked, tick: portfolio.write.effectTick });
    canvas.setAttribute(
      "aria-label",
      `Attributions of ${n.toLocaleString("en")} rows, a line for each feature, the one that weighs most first: ` +
        shown.slice(0, 8).map((j) => portfolio.playerTitle(j)).join(", "),
    );
  }

  function drawBars() {
    const most = portfolio.means[shown[0]] || 1;
    const write = writers(shown.map((j) => portfolio.means[j] * portfolio.write.factor)).value;
    const focused = [...bars.querySelectorAll("button")].indexOf(document.activeElement);
    bars.replaceChildren(
      ...shown.map((j) => {
        const { features } = portfolio.layout.players[j];
        const name = portfolio.playerTitle(j);
        return h(
          "li",
          {},
          h(
            "button",
            { type: "button", title: features.length > 1 ? features.map((each) => portfolio.titleOf(each)).join(", ") : name, onclick: () => choose(j) },
            h("span", { class: "name" }, name),
            h("span", { class: "track" }, h("span", { class: "bar", style: { width: `${(portfolio.means[j] / most) * 100}%` } })),
            h("span", { class: "number" }, write(portfolio.means[j] * portfolio.write.factor)),
          ),
        );
      }),
    );
    if (focused >= 0) bars.children[focused]?.firstChild.focus();
  }

  canvas.addEventListener("click", (event) => {
    const found = drawn?.at(...placeOf(canvas, event));
    if (found) pick(found.place);
  });
  const tip = h("p", { class: "quiet tip" });
  canvas.addEventListener("mousemove", (event) => {
    const found = drawn?.at(...placeOf(canvas, event));
    const player = found && shown[found.player];
    tip.textContent = found ? visible(`Row ${portfolio.rows[found.place] + 1}: ${described(portfolio, player, found.place)}`) : "";
  });
  redrawn(frame, draw, signal);
  const element = h(
    "section",
    { class: "panel", "aria-labelledby": "weights" },
    h("h2", { id: "weights" }, "Most important features"),
    h("p", { class: "quiet" }, `Mean size of the attribution over all rows${portfolio.write.unit && `, in ${portfolio.write.unit}`}. A feature's button shows how it works below.`),
    bars,
    h("h3", {}, "Each row's attributions", portfolio.write.unit && h("small", {}, ` ${portfolio.write.unit}`)),
    h("p", { class: "legend" }, "Value of the feature: ", h("span", { class: "ramp" }), " low to high; grey: a word, or missing. A click picks the row."),
    frame,
    tip,
  );
  return { element, draw };
}
