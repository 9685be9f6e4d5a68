// The score of a known margin, which near 0 and 1 the graph's own Sigmoid does not tell from others.

const SIGMOID_ERROR = 1e-6; // of ONNX Runtime's own, in float32
const ENDS = 1e-5; // from 0 or 1, where that error is more than a hundredth of the way there

/** As `scores_in` of compiler/rationale/decisions/rows.py has it: a margin that is a bound's, as its type rounds it, scores that bound. */
export function scoreOf(margin, isSingle, answered, { threshold, refer }) {
  const rounded = isSingle ? Math.fround : Number;
  const logit = (bound) => Math.log(bound) - Math.log1p(-bound);
  const small = Math.exp(-Math.abs(rounded(margin)));
  const sigmoid = (margin < 0 ? small : 1) / (1 + small);
  const exact = [threshold, ...(refer ?? [])].find((bound) => rounded(margin) === rounded(logit(bound))) ?? sigmoid;
  return Math.abs(exact - answered) <= SIGMOID_ERROR ? exact : answered;
}

/** Whether a threshold, or a bound of a band, lies so near 0 or 1 that probabilities alone do not decide. */
export const isNearEnds = ({ threshold, refer }) =>
  [threshold, ...(refer ?? [])].some((bound) => Math.min(Math.abs(bound), Math.abs(1 - bound)) <= ENDS);
