// What a waterfall says, in one line: the score, how far that is from the threshold, and what it is mainly from.

import { number, percent, signed } from "../format.js";

const NAMED = 2; // features
const LEAST_OF_LARGEST = 0.5; // below this part of the largest effect, a second one is not named

/**
 * Return the line, such as "10.8%, 9.2 points below the threshold; mainly: Late payments = 0, −6.9 points".
 *
 * `score` is held against `threshold` (null without one); `value` is explained from `base` (null without one) by
 * `items`: [{name, shown, amount}]. If these are not of the score, `unit` says of what they are. `isShare`: the score
 * is a probability. Effects are written by `write`, the writers of the waterfall, or as points in two digits.
 */
export function summaryOf({ score, threshold = null, value = score, base = null, items, write, unit = "", isShare = false }) {
  const points = (amount) => `${signed(Number((amount * 100).toPrecision(2)))} points`;
  const effect = (amount) => (unit ? `${write.effect(amount)} of the ${unit}` : isShare ? points(amount) : write.effect(amount));
  const parts = [isShare ? percent(score) : number(score)];
  if (threshold !== null) parts.push(apart(score - threshold, "threshold", isShare ? points : signed));
  else if (base !== null) parts.push(apart(value - base, "base value", isShare && !unit ? points : signed));
  const main = mainly(items, base === null ? 0 : value - base).map(
    ({ name, shown, amount }) => `${name}${shown ? ` = ${shown}` : ""}, ${effect(amount)}`,
  );
  return parts.join(", ") + (main.length ? `; mainly: ${main.join("; ")}` : "");
}

function apart(by, what, written) {
  return by ? `${written(Math.abs(by)).slice(1)} ${by < 0 ? "below" : "above"} the ${what}` : `exactly at the ${what}`;
}

/** The largest effects of those that move the score the way that all together do. */
function mainly(items, way) {
  const sorted = items.filter(({ amount }) => amount && !(amount * way < 0)).sort((a, b) => Math.abs(b.amount) - Math.abs(a.amount));
  return sorted.slice(0, NAMED).filter(({ amount }) => Math.abs(amount) >= LEAST_OF_LARGEST * Math.abs(sorted[0].amount));
}
