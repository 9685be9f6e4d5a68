// A beeswarm: a line for each feature, a dot for each row at its attribution, coloured by its value.

import { visible } from "../dom.js";
import { Dots, colours, dotSide, elided, ramp, sized, tickText, ticks } from "./canvas.js";

const LINE = 34; // CSS pixels of a feature
const AXIS = 30;
const EDGE = 10;
const COLUMNS_PER_PIXEL = 1;

/**
 * Draw it; returns {at(x, y) → {player, place} | null} for the dot that is nearest to a place.
 *
 * players: [{name, attributions, ranks: Uint8Array of places, or null}]; n: how many rows are there;
 * chosen: places of rows to mark; tick: writes a number on the axis.
 */
export function drawBeeswarm(canvas, width, { players, n, chosen = [], tick: up = tickText }) {
  const theme = colours(canvas);
  const height = players.length * LINE + AXIS;
  const { context, scale } = sized(canvas, width, height);
  const isNarrow = width < 560;
  context.font = context.font.replace("12px", isNarrow ? "11px" : "13px");
  const names = Math.min(
    Math.max(...players.map(({ name }) => context.measureText(visible(name)).width), 40) + 14,
    width * (isNarrow ? 0.38 : 0.3),
  );
  const [low, high] = range(players, n);
  const left = names;
  const right = width - EDGE;
  const toX = (value) => left + ((value - low) / (high - low)) * (right - left);
  context.fillStyle = theme.surface;
  context.fillRect(0, 0, width, height);
  context.strokeStyle = theme.line;
  context.fillStyle = theme.quiet;
  context.textAlign = "center";
  for (const tick of ticks(low, high, isNarrow ? 4 : 8)) {
    const x = Math.round(toX(tick)) + 0.5;
    line(context, x, 0, x, height - AXIS + 4);
    context.fillText(up(tick), x, height - AXIS + 19);
  }
  players.forEach((_, j) => line(context, left, (j + 0.5) * LINE, right, (j + 0.5) * LINE));
  context.strokeStyle = theme.quiet;
  const zero = Math.round(toX(0)) + 0.5;
  line(context, zero, 0, zero, height - AXIS + 4);

  const dots = new Dots(canvas, scale);
  const palette = ramp(theme);
  const side = dotSide(n, scale);
  const places = players.map((player, j) => spread(player, j, n, toX, left, right, side / scale));
  players.forEach((player, j) => {
    const { xs, ys } = places[j];
    for (let i = 0; i < n; i++) dots.dot(xs[i], ys[i], side, palette[player.ranks === null ? 255 : player.ranks[i]]);
  });
  dots.show();

  context.textAlign = "right";
  context.textBaseline = "middle";
  context.fillStyle = theme.text;
  players.forEach(({ name }, j) => context.fillText(elided(visible(name), (text) => context.measureText(text).width <= names - 12), left - 8, (j + 0.5) * LINE));
  context.strokeStyle = theme.text;
  context.lineWidth = 1.5;
  for (const place of chosen) {
    if (place >= n) continue;
    places.forEach(({ xs, ys }) => ring(context, xs[place], ys[place]));
  }
  return { at: (x, y) => nearest(places, x, y, n), height };
}

function range(players, n) {
  let low = 0;
  let high = 0;
  for (const { attributions } of players) {
    for (let i = 0; i < n; i++) {
      if (attributions[i] < low) low = attributions[i];
      else if (attributions[i] > high) high = attributions[i];
    }
  }
  if (low === high) return [-1, 1];
  const margin = (high - low) * 0.02;
  return [low - margin, high + margin];
}

/** Stack the dots of each column of pixels about the line's middle, as high as the fullest one allows. */
function spread(player, j, n, toX, left, right, side) {
  const bins = Math.max(Math.ceil((right - left) / (COLUMNS_PER_PIXEL * Math.max(side, 1))), 1) + 1;
  const counts = new Uint32Array(bins);
  const xs = new Float32Array(n);
  const ys = new Float32Array(n);
  const owners = new Uint32Array(n);
  for (let i = 0; i < n; i++) {
    xs[i] = toX(player.attributions[i]);
    owners[i] = Math.min(Math.max(Math.floor(((xs[i] - left) / (right - left)) * (bins - 1)), 0), bins - 1);
    counts[owners[i]]++;
  }
  const fullest = counts.reduce((most, each) => Math.max(most, each), 1);
  const room = LINE / 2 - 3;
  const step = Math.min(side * 0.9, (2 * room) / fullest);
  const seen = new Uint32Array(bins);
  const middle = (j + 0.5) * LINE;
  for (let i = 0; i < n; i++) {
    const k = seen[owners[i]]++;
    const height = ((k + 1) >> 1) * step;
    ys[i] = middle + (k & 1 ? -height : height);
  }
  return { xs, ys };
}

function nearest(places, x, y, n) {
  const j = Math.floor(y / LINE);
  if (j < 0 || j >= places.length) return null;
  const { xs, ys } = places[j];
  let best = 12 ** 2;
  let place = -1;
  for (let i = 0; i < n; i++) {
    const distance = (xs[i] - x) ** 2 + (ys[i] - y) ** 2;
    if (distance < best) {
      best = distance;
      place = i;
    }
  }
  return place < 0 ? null : { player: j, place };
}

function line(context, x1, y1, x2, y2) {
  context.beginPath();
  context.moveTo(x1, y1);
  context.lineTo(x2, y2);
  context.stroke();
}

function ring(context, x, y) {
  context.beginPath();
  context.arc(x, y, 5, 0, 2 * Math.PI);
  context.stroke();
}
