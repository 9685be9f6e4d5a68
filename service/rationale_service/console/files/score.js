// What is held against a threshold, and what is explained, in the answers of v1.

import { decidedScore, outcomeOf } from "./outcome.js";
import { elementName, optionName } from "./pictures/classes.js";

/** The flattened row of an output in one of v1's `predictions`; null where the model does not answer it. */
export function output(model, prediction, name) {
  if (!model.outputs.some((one) => one.name === name)) return null;
  const row = model.outputs.length === 1 ? prediction : prediction[name];
  return [row].flat(Infinity);
}

/** The explained number of a prediction without its explanation; null where that alone tells it. */
export function element(model, prediction, target) {
  const row = output(model, prediction, model.output);
  if (row === null || row.some((one) => typeof one !== "number")) return null;
  if (typeof target === "number") return row[target] ?? null;
  if (typeof target !== "string") return null;
  const [counts, less] = target.split("-").map(Number);
  return row[counts] - row[less];
}

/** The explanations of a row's targets: mostly one. */
export const targets = (explanation) => explanation.targets ?? [explanation];

/** Whether an output's numbers are probabilities, to be written in percent. */
export const isShare = (model, name) => (model.probabilities ?? []).includes(name);

/** How many elements a row of the explained output has. */
export const elements = (model) => model.output_shape.reduce((product, each) => product * Math.abs(each), 1);

const explained = (model) => ({ output: model.output, size: elements(model), classNames: model.class_names });

/** How a target is called, and how in a list of them. */
export const targetName = (model, target) => elementName(explained(model), target);
export const targetOption = (model, target) => optionName(explained(model), target);

/** Every class's score in a prediction, as {values, isShare}; null if the model has no classes, or does not answer them. */
export function classScores(model, prediction) {
  const count = elements(model);
  if (count < 2 || (count === 2 && !model.class_names?.length)) return null;
  for (const name of [...(model.probabilities ?? []), model.output]) {
    const values = output(model, prediction, name);
    if (values?.length === count && values.every((one) => typeof one === "number")) return { values, isShare: isShare(model, name) };
  }
  return null;
}

/** The class that a prediction scores highest; null without classes. */
export function predictedClass(model, prediction) {
  const { values } = classScores(model, prediction) ?? {};
  return values ? values.indexOf(values.reduce((a, b) => Math.max(a, b))) : null;
}

/**
 * A rule by which a score turns: of the decision profile, or a threshold of the reader's own (null: none).
 * {threshold, judge(score) → word, passes(score), score(prediction, explanation)}; null without either.
 */
export function ruleOf(model, own, target) {
  const profile = model.decision;
  if (profile) {
    const judge = (score) => outcomeOf(profile, score);
    return {
      threshold: profile.threshold,
      explained: profile.space === "output" && profile.output === model.output, // the same number as is explained
      judge,
      passes: (score) => judge(score) === "approve",
      score: (prediction, explanation) => {
        const answered = output(model, prediction, profile.output)?.[profile.index] ?? explanation?.explained_value ?? null;
        const margin = profile.space === "margin" ? explanation?.explained_value : explanation?.score_margin;
        const isSingle = model.outputs.find((one) => one.name === profile.output)?.datatype === "FP32";
        return answered === null ? null : decidedScore(profile, answered, false, margin ?? NaN, isSingle); // v1 writes the shortest
      },
    };
  }
  if (own === null) return null;
  const threshold = own;
  const judge = (score) => (outcomeOf({ threshold, adverse: "below" }, score) === "approve" ? "above" : "below");
  return {
    threshold,
    explained: true,
    judge,
    passes: (score) => judge(score) === "above",
    score: (prediction, explanation) => element(model, prediction, target) ?? explanation?.explained_value ?? null,
  };
}
