"""Bounds of regions and of certainty, changes that a knock-out asks of a group, and the order of plans."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rationale import Compiled, DeepShap, TreeShap, compile_model
from rationale.decisions.decide import Decision, outcome_of
from rationale.recourse import plans as plans_module
from rationale.recourse.applicant import SAFE, Applicant
from rationale.recourse.candidates import Candidates
from rationale.recourse.cells import CellSpace, _as_input
from rationale.recourse.flip_points import _tries
from rationale.recourse.levers import Lever
from rationale.recourse.points import PointSpace
from rationale.recourse.search import FoundPlan
from rationale.schema.profile import Action, DecisionProfile
from tests.compiler.models import parsed
from tests.references import trees

NAMES = ["f", "g", "own", "rent"]
GRID = np.array([[i / 2, i % 3, i % 2, 1 - i % 2] for i in range(9)], np.float32)


def compiled(**rules: Any) -> Compiled:
    """y = f + g + 2 own; above 2 declines, from 1 to 2 a person decides."""
    graph = "g (float[N, 4] x) => (float[N, 1] y) { y = MatMul (x, w) }"
    model = parsed(graph, {"w": np.array([[1], [1], [2], [0]], np.float32)})
    profile = {
        "output": "y",
        "threshold": 2.0,
        "adverse": "above",
        "refer": [1.0, 2.0],
        "groups": {"home": {"members": ["own", "rent"]}},
        "reasons": {"R": "text"},
        **rules,
    }
    return compile_model(model, DeepShap(GRID), feature_names=NAMES, decision=profile)


def row(f: float, g: float = 0.0, own: float = 0.0) -> np.ndarray:
    return np.array([[f, g, own, 1 - own]], np.float32)


@pytest.mark.parametrize(
    ("rules", "value", "region"),
    [
        ([], 2.0, (1, 2)),
        ([{"below": 1.5}], 2.0, (1.5, 2)),  # a referred row is knocked out as an approved one is
        ([{"above": 3.5}], 2.0, (1, 2)),
        ([{"below": 0.5}], 2.0, (1, 2)),
    ],
)
def test_a_region_of_referrals_ends_where_a_knock_out_begins(
    rules: list[dict[str, float]], value: float, region: tuple[float, float]
) -> None:
    entry = compiled(knock_outs=[{"feature": "f", "reason": "R", **rule} for rule in rules])
    (found,) = entry.recourse(row(3.0))
    point = next(point for point in found.flip_points if point.feature == "f")
    assert (point.to, point.value) == ("refer", pytest.approx(value))
    assert point.region == pytest.approx(region)


def test_a_knock_out_on_a_member_is_settled_by_its_group() -> None:
    knock_out = {"feature": "own", "equals": 1, "reason": "R"}
    entry = compiled(knock_outs=[knock_out], actionable={"home": {}})
    (found,) = entry.recourse(row(0.5, own=1.0))
    (plan,) = found.plans
    assert plan.changes == {"own": 0.0, "rent": 1.0}
    fixed = compiled(knock_outs=[knock_out], actionable={"g": {}})
    (none,) = fixed.recourse(row(0.5, own=1.0))
    assert (none.plans, none.search) == ((), "complete")
    assert "'own'" in str(none.note)


@pytest.mark.parametrize(("error", "cut"), [(0.0, 4.0), (0.25, 3.75), (np.inf, -np.inf)])
def test_what_is_not_known_of_a_margin_lowers_the_cut(error: float, cut: float) -> None:
    nothing: Any = None
    applicant: Any = SimpleNamespace(cut=lambda *, of_margin: 5.0 if of_margin else 0.99, error=error)
    space = CellSpace(nothing, applicant, nothing, nothing, nothing, nothing)
    space.__dict__["constant"] = 1.0
    assert space.cut == cut


@pytest.mark.parametrize(
    ("adverse", "refer", "cut"),
    [
        ("above", None, 2.0),
        ("below", None, -2.0),
        ("above", (1.0, 2.0), 1.0),  # approved below the band
        ("below", (2.0, 3.0), -3.0),  # above it: a risk is the score times -1
        ("below", (1.5, 2.5), -2.5),
    ],
)
def test_approvals_begin_at_the_band_s_end(
    adverse: Any, refer: tuple[float, float] | None, cut: float
) -> None:
    nothing: Any = None
    manifest: Any = SimpleNamespace(explained_value="y", decision=SimpleNamespace(margin=None))
    applicant = Applicant(nothing, manifest, {}, {}, {}, nothing)
    profile = DecisionProfile(output="y", threshold=2.0, adverse=adverse, refer=refer)
    applicant.__dict__["profile"] = manifest.decision.profile = profile
    distance = SAFE * abs(cut)
    assert applicant.cut(of_margin=False) == pytest.approx(cut - distance, rel=1e-12)
    assert applicant.cut(of_margin=False, is_certain=False) == pytest.approx(cut + distance, rel=1e-12)


@pytest.mark.parametrize(("threshold", "cut"), [(0.5, 0.0), (0.8, np.log(4)), (0.6, np.log(1.5))])
def test_rounding_moves_a_margin_by_a_share_of_1_at_least(threshold: float, cut: float) -> None:
    """Margins near 0 are sums of larger numbers, whose rounding they keep."""
    nothing: Any = None
    applicant = Applicant(nothing, nothing, {}, {}, {}, nothing, is_logistic=True)
    applicant.__dict__["profile"] = DecisionProfile(output="y", threshold=threshold, adverse="above")
    distance = SAFE * max(1, cut)
    assert applicant.cut(of_margin=True) == pytest.approx(cut - distance, rel=1e-12)
    assert applicant.cut(of_margin=True, is_certain=False) == pytest.approx(cut + distance, rel=1e-12)


@pytest.mark.parametrize("start", [-7.0, 12.0, 3.5])
@pytest.mark.parametrize("end", [3.0, 4.0, -20.0, 30.0])
def test_the_nearest_number_is_found_on_either_side(start: float, end: float) -> None:
    """The bound lies between: the number just beyond it is the nearest that passes."""
    bound = start + 0.37 * (end - start)

    def passes(numbers: Sequence[float]) -> np.ndarray:
        return np.array([(number - bound) * (end - start) >= 0 for number in numbers])

    lever = Lever("x", ("x",), Action(), -50, 50, None, None, 1.0)
    nothing: Any = None
    space = PointSpace(nothing, Candidates((lever,), {"x": start}, *[np.zeros(0)] * 3))
    found = space._nearer(lever, end, passes)
    assert passes([found]).all()
    assert abs(found - start) == pytest.approx(abs(bound - start), rel=0.011)  # fewer digits cost 1%


def test_a_region_has_no_row_inside_that_is_not_approved() -> None:
    """Its corners and its axes pass: halves, and quarters, are tried."""

    def risks(after: Sequence[Mapping[str, float]]) -> np.ndarray:
        return np.array([all(0.3 < row.get(name, 0.0) < 0.7 for name in "ab") for row in after], float)

    levers = tuple(Lever(name, (name,), Action(), -1, 1, None, None, 1.0) for name in "ab")
    applicant: Any = SimpleNamespace(risks=risks, cut=lambda **_: 0.5, profile=SimpleNamespace(knock_outs=()))
    owner, numbers = np.repeat([0, 1], 3), np.tile([-1.0, 0.0, 1.0], 2)
    space = PointSpace(applicant, Candidates(levers, {"a": 0.5, "b": -0.5}, owner, numbers, np.ones(6)))
    assert space.regions({0: 1, 1: 4}, {0: 0.0, 1: 0.0}) == {0: (-0.25, 0.25), 1: (-0.25, 0.25)}


def test_a_flip_point_of_a_choice_is_exact_and_one_of_a_number_is_not() -> None:
    """For a model without trees, the search tries each choice, but only some numbers."""
    entry = compiled()
    exact = {
        p.feature: p.exact for x in (row(0.5, own=1.0), row(3.0)) for p in entry.recourse(x)[0].flip_points
    }
    assert (exact["home"], exact["f"]) == (True, False)


NEAR = 1 + 5e-6


@pytest.mark.parametrize(
    ("adverse", "refer"), [("above", (1.0, 2.0)), ("below", (1.0, 2.0)), ("above", None)]
)
@pytest.mark.parametrize(
    ("score", "near"),
    [(1.0, "refer"), (NEAR, "refer"), (1 / NEAR, "refer"), (1.5, ""), (2.0, "both"), (2 * NEAR, "both")],
)
def test_the_entry_decides_on_each_score_near_any_bound(
    score: float, near: str, adverse: Any, refer: tuple[float, float] | None
) -> None:
    """Rounding flips a referral as it flips an approval: both ends of the band count, and the threshold."""
    nothing: Any = None
    asked = list[Any]()
    by_entry = SimpleNamespace(decision="told by the entry")
    entry: Any = SimpleNamespace(
        scores=lambda _: np.array([score]), decide=lambda _, values: asked.extend(values) or [by_entry]
    )
    applicant = Applicant(entry, nothing, {}, {}, {}, nothing)
    profile = DecisionProfile(output="y", threshold=2.0, adverse=adverse, refer=refer)
    applicant.__dict__["profile"] = profile
    is_near = near == "both" or (near == "refer" and refer is not None)
    due = by_entry.decision if is_near else outcome_of(profile, score)
    assert applicant.confirmed([{"x": 1}]) == [due]
    assert asked == [{"x": 1}] * is_near


@pytest.mark.parametrize(
    ("refused", "kept"),
    [
        ("", [("b", 1), ("d", 2), ("a", 3)]),
        ("b", [("d", 2), ("a", 3), ("c", 4)]),
        ("d", [("b", 1), ("a", 3), ("c", 4)]),
    ],
)
def test_plans_are_in_the_order_of_their_refined_costs(
    refused: str, kept: list[tuple[str, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change may become nearer than the candidate by which the search found it.

    One more than is shown is asked for: the entry may not approve all.
    """
    names, refined = ["a", "b", "c", "d"], [3.0, 1.0, 4.0, 2.0]
    levers = [Lever(name, (name,), Action(), -9, 9, None, None, 1.0) for name in names]
    values: dict[str, Any] = dict.fromkeys(names, 0.0)
    found = [FoundPlan({i: i}, 5.0 + i) for i in range(4)]
    monkeypatch.setattr(plans_module, "find_plans", lambda _, most: found[:most])
    approve = Decision("approve", 0.1, 0.5, 0.1, None, (), {}, None, None)
    refer = replace(approve, decision="refer")
    applicant: Any = SimpleNamespace(
        decide=lambda after: [refer if refused in changes else approve for changes in after],
        profile=SimpleNamespace(knock_outs=()),
    )
    space: Any = SimpleNamespace(
        candidates=SimpleNamespace(levers=levers, values=values),
        refined=lambda changes: {place: refined[place] for place in changes},
        regions=lambda _, own: {place: (value, value) for place, value in own.items()},
    )
    plans = plans_module.plans(applicant, space)
    assert [(*plan.changes, plan.cost) for plan in plans] == kept


def test_a_cell_of_doubles_begins_with_the_least_float_in_it() -> None:
    """A bound that a float holds is one itself; the others lie between two floats."""
    starts = np.array([0.5, 3.0, -2.25, 0.1, 0.7, -0.1, -0.7, np.inf, -np.inf])
    own = _as_input(starts, np.float32)
    assert own.dtype == np.float32
    assert own[:3].tolist() == [0.5, 3.0, -2.25]
    assert (own >= starts).all()
    finite = np.isfinite(starts)
    assert (np.nextafter(own[finite], np.float32(-np.inf)) < starts[finite]).all()
    assert _as_input(starts, np.float64) is _as_input(starts, None) is starts


@pytest.mark.parametrize(
    ("rule", "least"),
    [({}, 1.0), ({"below": 1.5}, 1.5), ({"below": 0.5}, 1.0), ({"above": 2.5}, 1.0)],
    ids=str,
)
def test_a_region_of_trees_ends_where_a_knock_out_begins(rule: dict[str, float], least: float) -> None:
    """A person decides from 1 up to 2, whatever the trees, which tell nothing of the knock-out's bound."""
    entry = stepped([1.0, 2.0], rule)
    decides = np.full((1, 5), 2.25, np.float32)
    (point,) = entry.recourse(decides)[0].flip_points
    assert (point.feature, point.to) == ("x0", "refer")
    assert point.region is not None
    low, high = point.region
    assert low == least
    assert high == pytest.approx(2.0)


@pytest.mark.parametrize("rule", [{}, {"above": 3.0}, {"above": 2.5, "below": 3.0}], ids=str)
def test_a_region_of_declines_goes_on_where_a_knock_out_declines_too(rule: dict[str, float]) -> None:
    (point,) = stepped(None, rule).recourse(np.full((1, 5), 1.25, np.float32))[0].flip_points
    assert (point.to, point.value, point.region) == ("decline", 2.0, (2.0, None))


def stepped(refer: list[float] | None, rule: dict[str, float]) -> Compiled:
    """Trees that answer 0 below 1 of the first feature, 1.5 below 2, and 3 from there on."""
    above = trees.Split(0, "LT", (2.0,), False, trees.Leaf((1.5,)), trees.Leaf((3.0,)))
    model = trees.regressor([trees.Split(0, "LT", (1.0,), False, trees.Leaf((0.0,)), above)])
    profile = {
        "output": model.graph.output[0].name,
        "threshold": 2.0,
        "adverse": "above",
        "refer": refer,
        "reasons": {"R": "text"},
        "knock_outs": [{"feature": "x0", "reason": "R", **rule}] if rule else [],
    }
    references = np.tile(np.linspace(0, 4, 9, dtype=np.float32)[:, None], (1, 5))
    names = [f"x{i}" for i in range(5)]
    return compile_model(model, TreeShap(references), decision=profile, feature_names=names)


def test_a_flip_behind_many_ties_is_tried_too() -> None:
    owner, cost = np.repeat([0, 1, 2], [10, 3, 2]), np.array([*range(10), 3, 1, 1, 4, 5], np.float64)
    lever = Lever("f", ("f",), Action(), -9, 9, None, None, 1.0)
    listed = Candidates((lever,) * 3, {}, owner, cost, cost)
    near = np.array([True] * 7 + [False, True, False] + [False, True, False] + [True] * 2)
    may_flip = np.ones(15, bool)
    assert _tries(listed, may_flip, near) == {0: [0, 1, 2, 3, 7], 1: [11, 12], 2: [13, 14]}
    may_flip[[0, 11, 13, 14]] = False
    assert _tries(listed, may_flip, near) == {0: [1, 2, 3, 4, 7], 1: [12]}
