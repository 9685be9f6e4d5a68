// What a score decides by a profile, as compiler/rationale/decisions has it: the only place where pages compare.

const SIGMOID_ERROR = 1e-6; // of ONNX Runtime's own, in float32
const ENDS = 1e-5; // from 0 or 1, where that error is more than a hundredth of the way there

/** Return approve, refer or decline: at the threshold a score passes, both ends of the band are referred. */
export function outcomeOf({ refer, adverse, threshold }, score) {
  if (refer && refer[0] <= score && score <= refer[1]) return "refer";
  return (adverse === "above" ? score > threshold : score < threshold) ? "decline" : "approve";
}

/** Whether a threshold, or a bound of a band, lies so near 0 or 1 that probabilities alone do not decide. */
export const isNearEnds = ({ threshold, refer }) =>
  [threshold, ...(refer ?? []).filter((end) => end !== 0 && end !== 1)].some(
    (bound) => Math.min(Math.abs(bound), Math.abs(1 - bound)) <= ENDS,
  );

/**
 * Return the number that is held against the threshold, as `scores_in` of compiler/rationale/decisions/rows.py does.
 * `answered` is the model's, `margin` is the number of which it is the Sigmoid, where one is known: near 0 and 1 the
 * graph's own Sigmoid tells no margins apart. Each may be of float32 (`isSingle`, `isMarginSingle`).
 */
export function decidedScore(profile, answered, isSingle, margin = NaN, isMarginSingle = isSingle) {
  const short = isSingle ? shortest(answered) : answered;
  const exact = scoreOf(profile, isMarginSingle ? Math.fround : Number, margin);
  return Math.abs(exact - short) <= SIGMOID_ERROR ? exact : short;
}

/** A margin that is a bound's, as its type rounds it, scores that bound. */
function scoreOf({ threshold, refer }, rounded, margin) {
  const logit = (bound) => Math.log(bound) - Math.log1p(-bound);
  const met = [threshold, ...(refer ?? [])].find((bound) => rounded(margin) === rounded(logit(bound)));
  const small = Math.exp(-Math.abs(rounded(margin)));
  return met ?? (margin < 0 ? small : 1) / (1 + small);
}

/** The shortest number that is the same in float32: a score that is the threshold is equal to it. */
function shortest(value) {
  for (let digits = 6; digits < 10; digits += 1) {
    const short = Number(value.toPrecision(digits));
    if (Math.fround(short) === value) return short;
  }
  return value;
}
