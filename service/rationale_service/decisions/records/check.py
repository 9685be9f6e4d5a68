"""Check of the decision in answer.json: `python check.py` recomputes it from request.json and model.onnx."""

import contextlib
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

Json = dict[str, Any]


def compute(
    session: ort.InferenceSession, graph: Json, profile: Json, applicant: Json, changes: Json
) -> tuple[Json, float, float, float, dict[str, float]]:
    """Return values by feature, and the graph's answers: score, explained and base value, attributions."""
    # Inputs of the graph, by the names of its features. null, a missing value, is NaN or an empty text.
    owned = {feature for tensor in graph["inputs"] for feature in tensor["features"]}
    single, values = Json(), dict(applicant)
    feeds = {name: np.array([[value]]) for name, value in graph["switches"].items()}
    for tensor in graph["inputs"]:
        name, features = tensor["name"], tensor["features"]
        whole = isinstance(applicant.get(name), list) or (name in applicant and name not in owned)
        row = applicant[name] if whole else [applicant[feature] for feature in features]
        cells = [None if value == "" else value for value in np.array(row, object).ravel()]
        if len(cells) == len(features):
            cells = [changes.get(feature, cell) for feature, cell in zip(features, cells, strict=True)]
        fed = ["" if tensor["dtype"] == "object" and value is None else value for value in cells]
        feeds[name] = np.array(fed, tensor["dtype"]).reshape(1, *tensor["shape"])
        if whole and feeds[name].dtype.kind == "f":  # reported in the graph's precision
            cells = [None if np.isnan(value) else float(str(value)) for value in feeds[name].ravel()]
        values |= dict(zip(features, cells, strict=True))
        single |= {name: cells[0]} if len(cells) == 1 else {}
    values = single | values | changes

    # One run gives the score and each feature's attribution.
    names = [output.name for output in session.get_outputs()]
    out = {name: np.ravel(array) for name, array in zip(names, session.run(names, feeds), strict=True)}
    score, explained, base = (float(str(out[name][index])) for name, index in graph["numbers"])
    if graph["margin"]:  # near 0 and 1 the graph's Sigmoid cannot distinguish margins
        margin = out[graph["margin"]][0]
        small = math.exp(-abs(margin))
        exact = (small if margin < 0 else 1) / (1 + small)
        for bound in (
            *(profile["refer"] or ())[::-1],
            profile["threshold"],
        ):  # as its type has it
            with np.errstate(divide="ignore"):
                exact = bound if margin == (np.log(bound) - np.log1p(-bound)).astype(margin.dtype) else exact
        score = exact if abs(exact - score) <= 1e-6 else score
    attributions: dict[str, float] = {}
    for name, features in graph["attributions"]:
        attributions |= dict(zip(features, out[name].tolist(), strict=True))
    return values, score, explained, base, attributions


def decide(profile: Json, values: Json, score: float) -> tuple[str, dict[str, list[float | None]]]:
    """Return the score's decision, unless a knock-out declines by itself, and the reasons of knock-outs."""
    knocked: dict[str, list[float | None]] = {}
    for rule in profile["knock_outs"]:
        actual, low, high = values.get(rule["feature"]), rule["above"], rule["below"]
        if rule["equals"] is not None:
            met = actual == rule["equals"]
        else:
            met = isinstance(actual, int | float)
            met = met and (low is None or actual > low) and (high is None or actual < high)
        knocked |= {rule["reason"]: [None, None]} if met else {}
    adverse = score > profile["threshold"] if profile["adverse"] == "above" else score < profile["threshold"]
    is_referred = profile["refer"] and profile["refer"][0] <= score <= profile["refer"][1]
    return "decline" if knocked else "refer" if is_referred else "decline" if adverse else "approve", knocked


def check() -> int:
    """Return 1 if a number differs, else 0."""
    folder, files = Path(__file__).parent, ("request", "answer", "profile", "graph")
    texts = ((folder / f"{file}.json").read_text("utf-8") for file in files)
    request, answer, profile, graph = map(json.loads, texts)
    applicant, above = request["instances"][0], profile["adverse"] == "above"
    options = ort.SessionOptions()
    for library in graph["libraries"]:
        options.register_custom_ops_library(str(folder / library))
    session = ort.InferenceSession(folder / graph["file"], options, providers=["CPUExecutionProvider"])
    values, score, explained, base, attributions = compute(session, graph, profile, applicant, {})

    # Adverse attributions add up by reason code: the largest sums are the reasons.
    rules, sums = {**profile["features"], **profile["groups"]}, dict[str, float]()
    for feature, value in attributions.items():
        if value > 0 if above else value < 0:
            code = rules.get(feature, {}).get("reason") or feature
            sums[code] = sums.get(code, 0) + value
    order, most = [*profile["reasons"], *sorted(sums)], profile["max_reasons"]
    ranked = sorted(sums, key=lambda code: (-abs(sums[code]), order.index(code)))
    tie, rank = 1e-6 * max(map(abs, sums.values()), default=0), dict[str, int]()
    for i, code in enumerate(ranked):  # codes that tie with the first of a run share its rank
        first = ranked[rank[ranked[i - 1]]] if i else code
        rank[code] = ranked.index(first) if abs(sums[first]) - abs(sums[code]) <= tie else i
    ranked = sorted(ranked, key=lambda code: (rank[code], order.index(code)))
    total, least = sum(sums.values()), profile["least_share"]
    ranked = [code for i, code in enumerate(ranked) if not i or sums[code] / total >= least]
    extra = [code for code in ranked[most:] if profile["reasons"].get(code, {}).get("inquiry")]
    scored = {code: [sums[code], sums[code] / total] for code in ranked[:most] + extra[:1]}

    decision, knocked = decide(profile, values, score)
    reasons = knocked or ({} if decision == "approve" else scored)

    # Compare number by number. Another machine sums in another order, so the last digits may differ.
    recomputed = {"decision": decision, "threshold": profile["threshold"], "score": score, "base_value": base}
    gap = explained - base - sum(attributions.values())
    recomputed |= {"explained_value": explained, "completeness_gap": gap}
    answered = {name: answer[name] for name in recomputed}
    answered |= {f"attribution of {feature}": value for feature, value in answer["attributions"].items()}
    recomputed |= {f"attribution of {feature}": value for feature, value in attributions.items()}
    for i, reason in enumerate(answer["reasons"], 1):
        answered[f"reason {i}: {reason['code']}"] = [reason["attribution"], reason["share"]]
        shown = reason["value"] if isinstance(reason["value"], dict) else {reason["feature"]: reason["value"]}
        answered |= {f"value of {feature}": value for feature, value in shown.items()}
        recomputed |= {f"value of {feature}": values.get(feature, value) for feature, value in shown.items()}
    recomputed |= {f"reason {i}: {code}": pair for i, (code, pair) in enumerate(reasons.items(), 1)}

    # Each plan leads to its decision, by changes that the profile allows, of values within their regions.
    allowed = set[str]()
    for name, action in profile["actionable"].items():
        allowed |= {*profile["groups"].get(name, {"members": [name]})["members"], *action["moves"]}
    for i, plan in enumerate((answer.get("recourse") or {}).get("plans", ()), 1):
        after, plan_score, *_ = compute(session, graph, profile, applicant, plan["changes"])
        answered |= {f"plan {i}: {name}": plan[name] for name in ("decision", "score")}
        recomputed[f"plan {i}: decision"], _ = decide(profile, after, plan_score)
        recomputed[f"plan {i}: score"] = plan_score
        answered |= {f"plan {i}: not actionable": "", f"plan {i}: out of its region": ""}
        recomputed[f"plan {i}: not actionable"] = ", ".join(sorted({*plan["changes"]} - allowed))
        recomputed[f"plan {i}: out of its region"] = ", ".join(
            feature
            for feature, (low, high) in plan["regions"].items()
            if (low is not None and after[feature] < low) or (high is not None and after[feature] > high)
        )
    near, different = 1e-4 * max(map(abs, [explained, base, *attributions.values()])), 0
    for name in answered | recomputed:
        same = answered.get(name) == recomputed.get(name)
        with contextlib.suppress(KeyError, TypeError, ValueError):  # other values must be equal
            same = same or np.allclose(answered[name], recomputed[name], rtol=0, atol=near)
        print(" " if same else "!", f"{name}: answered {answered.get(name)}, computed {recomputed.get(name)}")
        different += not same
    print(f"{different} DIFFERENT" if different else "the same decision, by the same reasons")
    return min(different, 1)


if __name__ == "__main__":
    sys.exit(check())
