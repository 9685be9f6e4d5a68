"""Recourse of compiled entries against brute force, against the model, and under the profile's rules."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from rationale import Compiled, DeepShap, ExactShap, TreeShap, compile_model
from rationale.errors import InvalidProfileError
from rationale.recourse.recourse import Recourse
from tests.compiler.models import FEATURES, mlp, rows
from tests.references import trees

NAMES = [f"x{i}" for i in range(5)]
REFERENCES = np.random.default_rng(7).standard_normal((60, 5)).astype(np.float32)
EVERY: dict[str, Any] = {name: {} for name in NAMES}


def forest(seed: int = 3, count: int = 10, depth: int = 3) -> onnx.ModelProto:
    grid = np.round(np.random.default_rng(seed).standard_normal(12), 2).tolist()
    return trees.regressor(trees.random_trees(seed, ["LEQ", "LT"], trees=count, depth=depth, grid=grid))


def compiled(model: onnx.ModelProto, actionable: Mapping[str, Any], **rules: Any) -> Compiled:
    output = model.graph.output[0].name
    profile = {"output": output, "threshold": 0.0, "adverse": "above", "actionable": actionable, **rules}
    return compile_model(model, TreeShap(REFERENCES), decision=profile, feature_names=NAMES)


def declined(entry: Compiled, count: int) -> np.ndarray:
    random = np.random.default_rng(1).standard_normal((400, 5)).astype(np.float32)
    decisions = entry.decide(random)
    return random[[d.decision != "approve" for d in decisions]][:count]


def scores(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    import onnxruntime as ort

    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (answer,) = session.run(None, {"x": x.astype(np.float32)})[:1]
    return np.asarray(answer).reshape(len(x))


def after(row: np.ndarray, changes: Mapping[str, float]) -> np.ndarray:
    changed = row.astype(np.float64).copy()
    for name, value in changes.items():
        changed[NAMES.index(name)] = value
    return changed.astype(np.float32)


@cache
def whole() -> tuple[onnx.ModelProto, Compiled]:
    model = forest()
    return model, compiled(model, EVERY)


def check_plans(entry: Compiled, row: np.ndarray, found: Recourse) -> None:
    """Each plan flips the decision, needs all its changes, and holds within its regions."""
    random = np.random.default_rng(0)
    for plan in found.plans:
        assert entry.decide(after(row, plan.changes)[None])[0].decision == "approve"
        for name in plan.changes:
            rest = {other: value for other, value in plan.changes.items() if other != name}
            assert entry.decide(after(row, rest)[None])[0].decision != "approve", (plan, name)
        inside = []
        for _ in range(50):
            values = dict(plan.changes)
            for name, (low, high) in plan.regions.items():
                ends = (
                    plan.changes[name] - 5 if low is None else low,
                    plan.changes[name] + 5 if high is None else high,
                )
                values[name] = random.choice([*ends, random.uniform(*ends)])
            inside.append(after(row, values))
        assert {d.decision for d in entry.decide(np.array(inside))} == {"approve"}
    levers = [set(plan.changes) for plan in found.plans]
    assert not any(a <= b for i, a in enumerate(levers) for b in levers[i + 1 :])
    assert [plan.cost for plan in found.plans] == sorted(plan.cost for plan in found.plans)


def test_plans_flip_the_decision_need_every_change_and_hold_in_their_regions() -> None:
    _, entry = whole()
    for row in declined(entry, 10):
        check_plans(entry, row, entry.recourse(row[None])[0])


def test_flip_points_equal_an_exhaustive_scan() -> None:
    model, entry = whole()
    spreads = {s.feature: s for s in entry.manifest.references.spreads}
    for row in declined(entry, 10):
        points = {point.feature: point for point in entry.recourse(row[None])[0].flip_points}
        for i, name in enumerate(NAMES):
            starts = np.asarray(entry.manifest.splits.get(name, ()), np.float32)
            low, high = spreads[name].quantiles[0], spreads[name].quantiles[-1]
            numbers = np.array(
                [n for n in [*starts, *np.nextafter(starts, np.float32(-9))] if low <= n <= high]
            )
            changed = np.tile(row, (len(numbers), 1))
            changed[:, i] = numbers
            flips = numbers[scores(model, changed) <= 0] if len(numbers) else numbers
            assert (name in points) == bool(len(flips)), name
            if name in points:
                nearest = flips[np.abs(flips - row[i]).argmin()]
                off = abs(points[name].value - row[i]) - abs(float(nearest) - row[i])
                assert abs(off) <= 1e-6
                assert points[name].exact


@pytest.mark.parametrize(("column", "adverse"), [(1, "above"), (0, "below")])
def test_trees_behind_a_sigmoid_have_the_recourse_of_their_margin(column: int, adverse: str) -> None:
    """The score is a probability; leaves are searched on the scale on which they add up."""
    grid = np.round(np.random.default_rng(3).standard_normal(12), 2).tolist()
    grown, bound = trees.random_trees(3, ["LEQ", "LT"], trees=10, depth=3, grid=grid), 0.4
    margin = compiled(trees.regressor(grown), EVERY, threshold=bound)
    share = 1 / (1 + np.exp(-bound if column else bound))
    classes = trees.classifier(grown, 2, only=0, post_transform="LOGISTIC", base_values=[0.0])
    rules = {"output": f"p[{column}]", "threshold": float(share), "adverse": adverse}
    entry, plans = compiled(classes, EVERY, **rules), 0
    for row in declined(margin, 10):
        (found,), (due,) = entry.recourse(row[None]), margin.recourse(row[None])
        check_plans(entry, row, found)
        plans += len(found.plans)
        assert [plan.changes for plan in found.plans] == [plan.changes for plan in due.plans]
        assert found.flip_points == due.flip_points
        assert found.search == due.search
    assert plans > 5


def test_a_score_near_1_certifies_nothing() -> None:
    """Float32 rounds such a score so coarsely that its margin is unknown: the entry scores points instead."""
    model = trees.classifier(
        trees.random_trees(3, ["LEQ"], trees=10, depth=3),
        2,
        only=0,
        post_transform="LOGISTIC",
        base_values=[12.0],
    )
    entry = compiled(model, EVERY, output="p[1]", threshold=0.5)
    for row in declined(entry, 3):
        assert entry.decide(row[None])[0].score > 0.999
        (found,) = entry.recourse(row[None])
        assert (found.plans, found.search) == ((), "heuristic")


def test_a_value_whose_score_is_the_threshold_flips() -> None:
    model, entry = whole()
    row = declined(entry, 1)[0]
    starts = np.asarray(entry.manifest.splits["x0"], np.float32)
    changed = np.tile(row, (len(starts), 1))
    changed[:, 0] = starts
    risks = scores(model, changed)
    for score in np.unique(risks[risks < scores(model, row[None])[0]]):
        exact = compiled(model, EVERY, threshold=float(str(score)))
        flips = [d.decision == "approve" for d in exact.decide(changed)]
        distances = np.abs(starts - row[0])[flips]
        found = {point.feature: point for point in exact.recourse(row[None])[0].flip_points}
        assert abs(found["x0"].value - row[0]) <= distances.min() + 1e-6


def test_the_order_of_the_features_does_not_matter() -> None:
    _, entry = whole()
    row = declined(entry, 1)
    backwards = {name: EVERY[name] for name in reversed(NAMES)}
    other = compiled(forest(), backwards)
    assert [p.changes for p in other.recourse(row)[0].plans] == [
        p.changes for p in entry.recourse(row)[0].plans
    ]


def test_a_row_has_the_same_plans_alone_and_among_others() -> None:
    _, entry = whole()
    several = declined(entry, 4)
    together = entry.recourse(several)
    assert [entry.recourse(row[None])[0] for row in several] == together


@dataclass(frozen=True)
class Rule:
    """An action, and a test of a change from one value to another."""

    action: Mapping[str, Any]
    allows: Any


RULES = {
    "up": Rule({"direction": "up"}, lambda x, y: y > x),
    "down": Rule({"direction": "down"}, lambda x, y: y < x),
    "steps": Rule({"step": 0.25}, lambda _, y: abs(y / 0.25 - round(y / 0.25)) < 1e-9),
    "most": Rule({"most": 0.5}, lambda x, y: abs(y - x) <= 0.5 + 1e-6),
    "share": Rule({"most": "40%"}, lambda x, y: abs(y - x) <= 0.4 * abs(x) + 1e-6),
}


@pytest.mark.parametrize("name", RULES)
def test_no_plan_breaks_a_rule(name: str) -> None:
    rule = RULES[name]
    entry = compiled(forest(), dict.fromkeys(NAMES[:4], rule.action))
    plans = 0
    for row in declined(entry, 12):
        (found,) = entry.recourse(row[None])
        for plan in found.plans:
            plans += 1
            for feature, value in plan.changes.items():
                assert feature in NAMES[:4]
                assert rule.allows(float(row[NAMES.index(feature)]), value), (feature, value)
        check_plans(entry, row, found)
    assert plans


def test_a_cost_makes_a_feature_the_last_resort() -> None:
    _, entry = whole()
    dear = compiled(forest(), {**EVERY, "x0": {"cost": 50}})
    for row in declined(entry, 6):
        cheap = entry.recourse(row[None])[0].plans
        other = dear.recourse(row[None])[0].plans
        if cheap and other and "x0" in cheap[0].changes:
            assert other[0].cost >= cheap[0].cost


def test_nothing_is_suggested_where_the_profile_says_nothing() -> None:
    entry = compiled(forest(), {})
    (found,) = entry.recourse(declined(entry, 1))
    assert found.plans == ()
    assert found.flip_points
    assert found.note


def test_an_approval_has_flip_points_and_no_plans() -> None:
    _, entry = whole()
    random = np.random.default_rng(1).standard_normal((50, 5)).astype(np.float32)
    row = next(r for r, d in zip(random, entry.decide(random), strict=True) if d.decision == "approve")
    (found,) = entry.recourse(row[None])
    assert found.plans == ()
    assert {point.to for point in found.flip_points} <= {"decline"}


def test_none_is_certified_only_if_there_is_none() -> None:
    model = forest()
    entry = compiled(model, {"x0": {"most": 0.05}, "x1": {"most": 0.05}})
    certified = 0
    for row in declined(entry, 12):
        (found,) = entry.recourse(row[None])
        due = [row[i] + np.linspace(-0.05, 0.05, 101) for i in range(2)]
        changed = np.tile(row, (101 * 101, 1))
        changed[:, 0], changed[:, 1] = (axis.ravel() for axis in np.meshgrid(*due))
        passes = (scores(model, changed) <= 0).any()
        if found.search == "complete" and not found.plans:
            certified += 1
            assert not passes
    assert certified > 3


def test_none_is_certified_at_a_distance_that_margins_are_rounded_by() -> None:
    """A certificate's distance is one of margins; that of the score is half of it here."""
    grown = trees.random_trees(4, ["LEQ", "LT"], trees=1, depth=4)
    own = scores(trees.regressor(grown), REFERENCES)
    row = REFERENCES[[int(own.argmax())]]
    changed = np.tile(row, (4001, 1))
    changed[:, 0] = np.linspace(REFERENCES[:, 0].min(), REFERENCES[:, 0].max(), 4001)
    base = 0.2 - float(scores(trees.regressor(grown), changed).min())
    assert base + own.max() > 0.3
    classes = trees.classifier(grown, 2, only=0, post_transform="LOGISTIC", base_values=[base])
    found = {}
    for gap in (1.2e-5, 3e-5):
        rules = {"output": "p[1]", "threshold": float(1 / (1 + np.exp(gap - 0.2)))}
        (found[gap],) = compiled(classes, {"x0": {}}, **rules).recourse(row)
    assert [(each.plans, each.search) for each in found.values()] == [((), "heuristic"), ((), "complete")]


def test_a_band_that_a_person_decides_must_be_passed() -> None:
    entry = compiled(forest(), EVERY, refer=[-0.4, 0.3])
    for row in declined(entry, 8):
        for plan in entry.recourse(row[None])[0].plans:
            assert plan.score < -0.4


def test_small_scores_may_be_adverse() -> None:
    entry = compiled(forest(), EVERY, adverse="below")
    for row in declined(entry, 8):
        check_plans(entry, row, entry.recourse(row[None])[0])


def test_a_knock_out_must_be_settled_too() -> None:
    rule = {"knock_outs": [{"feature": "x0", "above": 0.5, "reason": "R"}], "reasons": {"R": "text"}}
    rule["features"] = {name: {"reason": "R"} for name in NAMES}
    entry = compiled(forest(), EVERY, **rule)
    hit = [row for row in declined(entry, 60) if row[0] > 0.5][:6]
    assert hit
    for row in hit:
        found = entry.recourse(row[None])[0]
        assert found.flip_points == ()
        for plan in found.plans:
            assert plan.changes["x0"] <= 0.5
        check_plans(entry, row, found)
    fixed = compiled(forest(), {"x1": {}}, **rule)
    found = fixed.recourse(hit[0][None])[0]
    assert found.plans == ()
    assert found.search == "complete"
    assert "x0" in str(found.note)


def test_a_knock_out_is_settled_at_its_own_bound() -> None:
    """No tree tells the value from the bound; the change to the bound alone is enough."""
    _, entry = whole()
    starts = np.asarray(entry.manifest.splits["x0"])
    k = int(np.argmax(np.diff(starts)))
    bound, value = starts[k] + np.diff(starts)[k] * np.array([0.4, 0.6])
    random = np.random.default_rng(1).standard_normal((100, 5)).astype(np.float32)
    random[:, 0] = value
    approved = random[[decision.decision == "approve" for decision in entry.decide(random)]][:3]
    bound = round(float(bound), 3)
    rule = {"knock_outs": [{"feature": "x0", "above": bound, "reason": "R"}], "reasons": {"R": "text"}}
    strict = compiled(forest(), {"x0": {}}, features={name: {"reason": "R"} for name in NAMES}, **rule)
    assert len(approved)
    for row in approved:
        plan = strict.recourse(row[None])[0].plans[0]
        assert bound - 0.01 < plan.changes["x0"] <= bound
        check_plans(strict, row, strict.recourse(row[None])[0])


def test_features_that_move_along_do() -> None:
    entry = compiled(forest(), {"x0": {"moves": ["x1"]}})
    for row in declined(entry, 12):
        for plan in entry.recourse(row[None])[0].plans:
            moved = plan.changes["x1"] - row[1]
            assert moved == pytest.approx(plan.changes["x0"] - row[0], abs=1e-6)


def test_missing_numbers_can_be_given_and_never_taken_away() -> None:
    _, entry = whole()
    for row in declined(entry, 8):
        row[2] = np.nan
        if entry.decide(row[None])[0].decision != "approve":
            for plan in entry.recourse(row[None])[0].plans:
                assert all(np.isfinite(value) for value in plan.changes.values())


def test_a_network_has_plans_that_its_entry_confirms() -> None:
    references = rows(20, FEATURES)
    names = [f"f{i}" for i in range(FEATURES)]
    model = mlp()
    plain = compile_model(model, DeepShap(references), feature_names=names, targets=[2])
    value = plain.explain(references)["explained_value"][:, 0]
    profile = {
        "output": "y[2]",
        "threshold": round(float(np.quantile(value, 0.6)), 3),
        "adverse": "above",
        "actionable": {name: {} for name in names[:4]},
    }
    entry = compile_model(model, DeepShap(references), decision=profile, feature_names=names)
    applicants = rows(30, FEATURES)
    found = entry.recourse(applicants)
    decisions = entry.decide(applicants)
    assert any(each.plans for each in found)
    for row, decision, each in zip(applicants, decisions, found, strict=True):
        assert each.search == "heuristic"
        for plan in each.plans:
            assert decision.decision == "decline"
            changed = row.astype(np.float64).copy()
            for name, value in plan.changes.items():
                changed[names.index(name)] = value
            assert entry.decide(changed[None].astype(np.float32))[0].decision == "approve"


HOME: dict[str, Any] = {"groups": {"home": {"members": NAMES[:3]}}, "actionable": {"home": {}}}
COUNTS = np.random.default_rng(3).integers(0, 5, (40, 5))  # of a group that is no one-hot one
KNOWN = {"one-hot": np.column_stack([np.eye(3)[COUNTS[:, 0] % 3], COUNTS[:, 3:]]), "counts": COUNTS}


@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("kind", [np.float32, np.float64, np.float16, np.int64, np.int32])
def test_only_a_one_hot_group_changes_its_member(kind: Any, known: str) -> None:
    references = KNOWN[known].astype(kind)
    x = helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(np.dtype(kind)), ["N", 5])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["N", 1])
    weights = numpy_helper.from_array(np.array([[3], [0], [-3], [0.125], [0.25]], np.float32), "w")
    nodes = [
        helper.make_node("Cast", ["x"], ["number"], to=onnx.TensorProto.FLOAT),
        helper.make_node("MatMul", ["number", "w"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "home", [x], [y], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    profile = {"output": "y", "threshold": 2.0, "adverse": "above", "refer": [1.5, 2.0], **HOME}
    entry = compile_model(model, ExactShap(references), decision=profile, feature_names=NAMES)
    (found,) = entry.recourse(np.array([[1, 0, 0, 4, 2]], kind))
    flips = {point.feature: (point.value, point.to) for point in found.flip_points}
    if known == "counts":
        assert (found.plans, "home" in flips) == ((), False)
    else:
        assert flips["home"] == ("x1", "approve")
        (plan,) = found.plans
        assert (plan.changes, plan.regions) == ({"x0": 0.0, "x1": 1.0, "x2": 0.0}, {})
        assert (plan.cost, plan.score) == (1.0, 1.0)


UNUSABLE: dict[str, Sequence[Any]] = {
    "unknown": [{"salary": {}}, "salary"],
    "protected": [{"x0": {}}, "x0"],
    "moves nothing known": [{"x1": {"moves": ["salary"]}}, "salary"],
    "moves itself": [{"x1": {"moves": ["x1"]}}, "x1"],
    "moves what changes too": [{"x1": {"moves": ["x2"]}, "x2": {}}, "x2"],
    "moves what is protected": [{"x1": {"moves": ["x0"]}}, "x0"],
    "moves a member of a group that changes": [{"x1": {"moves": ["x3"]}, "home": {}}, "x3"],
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_actions_that_make_no_sense_are_refused(case: str) -> None:
    actions, name = UNUSABLE[case]
    groups = {"home": {"members": ["x2", "x3"]}} if "home" in actions else {}
    with pytest.raises(InvalidProfileError, match=f"actionable.*{name}"):
        compiled(forest(), actions, protected=["x0"], allow_protected=["x0"], groups=groups)
