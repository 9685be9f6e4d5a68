// What a score decides by a profile, as compiler/rationale/decisions has it: the only place where pages compare.

const SIGMOID_ERROR = 1e-6; // of ONNX Runtime's own, in float32

/** Return approve, refer or decline: at the threshold a score passes, both ends of the band are referred. */
export function outcomeOf({ refer, adverse, threshold }, score) {
  if (refer && refer[0] <= score && score <= refer[1]) return "refer";
  return (adverse === "above" ? score > threshold : score < threshold) ? "decline" : "approve";
}

/**
 * Return the number that is held against the threshold. `answered` is the model's, `single` says whether it is of
 * float32, `margin` is the explained value where that is the score's margin.
 */
export function decidedScore(answered, single, margin = NaN) {
  const exact = sigmoid(margin);
  if (Math.abs(exact - answered) <= SIGMOID_ERROR) return exact;
  return single ? shortest(answered) : answered;
}

/** Near 0 and 1 the graph's own Sigmoid tells no margins apart. */
function sigmoid(margin) {
  const small = Math.exp(-Math.abs(margin));
  return (margin < 0 ? small : 1) / (1 + small);
}

/** The shortest number that is the same in float32: a score that is the threshold is equal to it. */
function shortest(value) {
  for (let digits = 6; digits < 10; digits += 1) {
    const short = Number(value.toPrecision(digits));
    if (Math.fround(short) === value) return short;
  }
  return value;
}
