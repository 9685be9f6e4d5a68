// What a decision profile makes of a row: the same as compiler/rationale/decisions/decide.py, which the tests hold it to.

import { outcomeOf } from "./outcome.js";

const TIE = 1e-6; // of the largest: attributions that differ by less are tied

/**
 * Return { decision, reasons, warnings, problem }.
 * @param decided { profile, tolerance }
 * @param row { score, gap, attributions }: attributions by feature or group.
 * @param values of features, and of what knock-outs look at; null where one is missing.
 */
export function decide({ profile, tolerance }, row, values) {
  const none = (problem, decision = null) => ({ decision, reasons: [], warnings: [], problem });
  if (!Number.isFinite(row.score)) return none(`Nothing is decided: the score is ${row.score}.`);
  const outside = outsideOf(profile, values);
  if (outside.length && profile.outside === "refuse") return none(`Nothing is decided: ${outside.join("; ")}.`);
  const hit = profile.knock_outs.filter((rule) => fits(rule, values[rule.feature] ?? null));
  const decision = hit.length ? "decline" : outcomeOf(profile, row.score);
  const warnings = [...outside];
  let reasons = [];
  if (hit.length) {
    const codes = new Map(hit.map((rule) => [rule.reason, []]));
    for (const { reason, feature } of hit) if (!codes.get(reason).includes(feature)) codes.get(reason).push(feature);
    reasons = [...codes].map(([code, keys]) => reasonOf(profile, code, keys, values));
  } else if (decision !== "approve") {
    if (row.gap !== null && !(Math.abs(row.gap) <= tolerance)) {
      return none(`No reasons are given: the attributions miss the score by ${row.gap.toPrecision(2)}.`, decision);
    }
    reasons = principal(profile, row.attributions, values);
    if (!reasons.length) {
      const base = decision === "decline" ? ": the base value is adverse by itself" : "";
      warnings.push(`no feature speaks against the applicant${base}`);
    }
  }
  return { decision, reasons, warnings, problem: null };
}

function principal(profile, attributions, values) {
  const ranked = ranking(profile, attributions);
  const total = ranked.reduce((sum, { size }) => sum + size, 0);
  const large = ranked.filter(({ size }, i) => !i || size / total >= profile.least_share);
  const extra = large.slice(profile.max_reasons).find(({ code }) => own(profile.reasons, code)?.inquiry);
  return [...large.slice(0, profile.max_reasons), ...(extra ? [extra] : [])].map(({ code, keys, size }) => ({
    ...reasonOf(profile, code, keys, values), share: size / total, attribution: profile.adverse === "above" ? size : -size,
  }));
}

function ranking(profile, attributions) {
  const sign = profile.adverse === "above" ? 1 : -1;
  const adverse = Object.entries(attributions).map(([key, value]) => [key, sign * value]).filter(([, size]) => size > 0);
  adverse.sort(([a, x], [b, y]) => y - x || compared(a, b));
  const codes = new Map();
  for (const [key, size] of adverse) {
    const code = ruleOf(profile, key).reason ?? key;
    const one = codes.get(code) ?? { code, keys: [], size: 0 };
    codes.set(code, { code, keys: [...one.keys, key], size: one.size + size });
  }
  const order = Object.keys(profile.reasons);
  const place = ({ code }) => (order.includes(code) ? order.indexOf(code) : order.length);
  const inOrder = (a, b) => place(a) - place(b) || compared(a.code, b.code);
  const ranked = [...codes.values()].sort((a, b) => b.size - a.size || inOrder(a, b));
  let first = 0; // those that tie with the first of a run have its rank
  const ranks = new Map(ranked.map((one, i) => {
    if (!(ranked[first].size - one.size <= TIE * ranked[0].size)) first = i;
    return [one, first];
  }));
  return ranked.sort((a, b) => ranks.get(a) - ranks.get(b) || inOrder(a, b));
}

function reasonOf(profile, code, keys, values) {
  const group = own(profile.groups, keys[0]);
  const value = group ? Object.fromEntries(group.members.map((name) => [name, values[name] ?? null])) : values[keys[0]] ?? null;
  const text = own(profile.reasons, code);
  return { code, keys, text: text ? worded(text, value) : ruleOf(profile, keys[0]).title ?? keys[0] };
}

function worded(text, value) {
  const isGroup = value !== null && typeof value === "object";
  const missing = isGroup ? Object.values(value).every((each) => each === null) : value === null;
  if (missing) return text.missing || text.text;
  return (isGroup ? undefined : text.when.find((one) => fits(one, value))?.text) ?? text.text;
}

function fits({ above, below, equals }, value) {
  if (value === null) return false;
  if (equals !== null) return typeof equals === "string" || typeof value === "string" ? equals === value : Number(equals) === Number(value);
  if (typeof value === "string") return false;
  return (above === null || value > above) && (below === null || value < below);
}

/** Return a sentence for each value that the profile does not take. */
function outsideOf(profile, values) {
  return Object.entries(profile.features).flatMap(([name, rule]) => {
    const value = values[name] ?? null;
    if (value === null) return [];
    const keys = Object.keys(rule.categories);
    const isKnown = keys.some((key) => key === String(value) || (typeof value !== "string" && key !== "" && Number(key) === Number(value)));
    const title = rule.title ?? name;
    if (keys.length && !rule.open && !isKnown) return [`${title} is none of the categories that are taken`];
    if (typeof value === "string") return [];
    if (rule.least !== null && value < rule.least) return [`${title} is less than ${rule.least}`];
    return rule.most !== null && value > rule.most ? [`${title} is more than ${rule.most}`] : [];
  });
}

/** Return [faults, warnings]: sentences for values that the fitted model refuses, or takes as unknown or missing. */
export function unknownOf(texts, values) {
  const isKnown = ({ known }, value) => known.some((key) => key === String(value) || (typeof value === "number" && Number(key) === value));
  const odd = Object.entries(texts).filter(([name, rule]) => (values[name] ?? "") !== "" && !isKnown(rule, values[name]));
  const said = (refuses, what) => odd.filter(([, rule]) => rule.refuses === refuses).map(([name]) => `feature '${name}' ${what}`);
  const unknown = "is a category that the model was not trained on";
  return [said(true, `${unknown} and refuses`), said(false, `${unknown}: it takes it as unknown or missing`)];
}

export function ruleOf(profile, key) {
  return own(profile?.groups, key) ?? own(profile?.features, key) ?? {};
}

/** What an object has of its own: a feature may be called constructor. */
export const own = (object, key) => (object && Object.hasOwn(object, key) ? object[key] : undefined);

const compared = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
