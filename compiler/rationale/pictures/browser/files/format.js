// Numbers as people read them.

const DIGITS = 4;
const MINUS = "−";
const LARGEST = 1e15; // from which on exponents are shorter than digits
const MOST_DECIMALS = 9;
const NEGLIGIBLE = 1e-6; // of the largest effect: what is less has no say in how many decimals all have

/** 0.19694 → "0.1969", 24500 → "24,500", 1.2e-7 → "1.2e−7"; null → "–". The last two are toLocaleString's. */
export function number(value, digits = DIGITS, useGrouping = "always", roundingMode = "halfExpand", locale = "en") {
  if (!isThere(value)) return "–";
  const size = Math.abs(value);
  if (size && (size < Math.max(1e-4, 10 ** -digits) || size >= LARGEST)) return exponent(value, Math.max(1, digits - 3));
  const places = size >= 1000 ? 2 : Math.max(0, digits - (size < 1 ? 0 : order(size)));
  return grouped(value, { maximumFractionDigits: places, useGrouping, roundingMode }, locale);
}

/** With its sign, which says that it is a difference. */
export const signed = (value, write = number) => (value > 0 ? `+${write(value)}` : write(value));

/** A rest that should be nothing, by its size alone. */
export const rest = (value) => (value ? exponent(value) : "0");

export const percent = (share) => `${number(share * 100, 3)}%`;

/** A value of a feature, of whatever kind: 1956 may be a year, and has no mark of thousands. */
export function formatted(value, roundingMode, locale) {
  if (value === undefined) return "not given";
  if (value === null || value === "") return "missing";
  return typeof value === "number" ? number(value, 6, "min2", roundingMode, locale) : String(value);
}

/**
 * Writers of numbers that stand together, all with as many decimals as let the smallest effect have a digit and the
 * largest three: {value(n) → text, effect(n) → text with its sign, unit: what is behind an effect}.
 * `isShare`: they are probabilities, in percent; differences of them are percentage points.
 */
export function writers(effects, values = [], isShare = false) {
  const factor = isShare ? 100 : 1;
  const decimals = decimalsOf(sizes(effects, factor)) ?? decimalsOf(sizes(values, factor)) ?? 0;
  const write = (value) => {
    if (!isThere(value)) return "–";
    if (decimals > MOST_DECIMALS || Math.abs(value) >= LARGEST) return value ? exponent(value * factor) : "0";
    return grouped(value * factor, { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
  };
  const isNothing = (value) => !/[1-9∞]/.test(write(value));
  return {
    value: (value) => `${write(value)}${isShare && isThere(value) ? "%" : ""}`,
    effect: (value) => (isThere(value) && value > 0 && !isNothing(value) ? `+${write(value)}` : write(value)),
    unit: isShare ? "percentage points" : "",
  };
}

function decimalsOf(found) {
  const largest = found.reduce((a, b) => Math.max(a, b), 0);
  if (!largest) return null;
  const smallest = found.filter((size) => size >= largest * NEGLIGIBLE).reduce((a, b) => Math.min(a, b), largest);
  return Math.max(0, -order(smallest), 2 - order(largest));
}

const sizes = (numbers, factor) => numbers.map((one) => Math.abs(one * factor)).filter((one) => one > 0 && Number.isFinite(one));
const order = (size) => Math.floor(Math.log10(size));
const isThere = (value) => value !== null && value !== undefined && !Number.isNaN(value);
const exponent = (value, places = 1) => (Number.isFinite(value) ? value.toExponential(places).replaceAll("-", MINUS) : grouped(value, {}));

/** With separators of thousands; what is rounded to nothing has no sign. */
function grouped(value, places, locale = "en") {
  return value.toLocaleString(locale, { ...places, signDisplay: "negative" }).replace("-", MINUS);
}

/** A share in a column of a table: one decimal, so that figures stand below each other. */
export const percentInTable = writers([0.1], [], true).value;
