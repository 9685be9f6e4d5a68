// Numbers as people read them.

const DIGITS = 4;
const MINUS = "−";

/** 0.19694 → "0.1969", 24500 → "24,500", 1.2e-7 → "1.2e−7"; null → "–". */
export function number(value, digits = DIGITS) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : `${MINUS}∞`;
  const size = Math.abs(value);
  if (size && (size < 1e-4 || size >= 1e9)) return value.toExponential(1).replaceAll("-", MINUS);
  const places = size >= 1000 ? 2 : Math.max(0, digits - (size < 1 ? 0 : Math.floor(Math.log10(size))));
  return value.toLocaleString("en", { maximumFractionDigits: places }).replace("-", MINUS);
}

/** With its sign, which says that it is a difference. */
export const signed = (value) => (value > 0 ? `+${number(value)}` : number(value));

/** A rest that should be nothing, by its size alone. */
export const rest = (value) => (value ? value.toExponential(1).replaceAll("-", MINUS) : "0");

export const percent = (share) => `${number(share * 100, 3)}%`;

/** A value of a feature, of whatever kind. */
export function formatted(value) {
  if (value === null || value === undefined || value === "") return "missing";
  return typeof value === "number" ? number(value, 6) : String(value);
}
