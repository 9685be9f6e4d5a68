"""Plans of trees beside brute force: under each rule, and by the types of the input and of the trees."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

from rationale import Compiled, TreeShap, compile_model
from rationale.recourse.entry import recourse_finder
from rationale.recourse.levers import DEARER, Lever
from tests.references import trees

NAMES = [f"x{i}" for i in range(5)]
ACTIONABLE = NAMES[:3]
TYPES: dict[str, tuple[type, type]] = {
    "float32": (np.float32, np.float32),
    "float64": (np.float64, np.float64),
    "float32 to trees of float64": (np.float32, np.float64),
    "float64 to trees of float32": (np.float64, np.float32),
    "float16 to trees of float32": (np.float16, np.float32),
}


def knock_out(**condition: float) -> dict[str, Any]:
    rule = {"feature": "x0", "reason": "R", **condition}
    features = {name: {"reason": "R"} for name in NAMES}
    return {"knock_outs": [rule], "reasons": {"R": "text"}, "features": features}


@dataclass(frozen=True, eq=False)
class Case:
    """A forest with its rules.

    Attributes:
        digits: decimals of the splits; with 1, each split is a multiple of the steps.
        lacks: whether every other applicant has no x0.
    """

    action: Mapping[str, Any]
    rules: Mapping[str, Any]
    digits: int = 2
    lacks: bool = False
    types: str = "float32"

    @cached_property
    def dtype(self) -> type:
        return TYPES[self.types][0]

    @cached_property
    def model(self) -> onnx.ModelProto:
        grid = np.round(np.random.default_rng(3).standard_normal(12), self.digits).tolist()
        own, compared = TYPES[self.types]
        grown = trees.random_trees(3, ["LEQ", "LT"], trees=10, depth=3, grid=grid)
        model = trees.ensemble(grown, dtype=compared)
        if own != compared:
            kinds = [helper.np_dtype_to_tensor_dtype(np.dtype(each)) for each in (own, compared)]
            model.graph.node[0].input[0] = "cast"
            model.graph.node.insert(0, helper.make_node("Cast", ["x"], ["cast"], to=kinds[1]))
            model.graph.input[0].type.tensor_type.elem_type = kinds[0]
        return model

    @cached_property
    def entry(self) -> Compiled:
        references = np.random.default_rng(7).standard_normal((60, 5)).astype(self.dtype)
        actionable = dict.fromkeys(ACTIONABLE, self.action)
        profile = {"output": "y", "threshold": 0.0, "adverse": "above", "actionable": actionable}
        return compile_model(
            self.model, TreeShap(references), decision={**profile, **self.rules}, feature_names=NAMES
        )

    @cached_property
    def levers(self) -> dict[str, Lever]:
        finder = recourse_finder(self.entry.manifest, self.entry.source)
        assert finder.actionable_trees is not None
        return {lever.name: lever for lever in finder.actionable}

    def scores(self, x: np.ndarray) -> np.ndarray:
        session = ort.InferenceSession(self.model.SerializeToString(), providers=["CPUExecutionProvider"])
        return np.asarray(session.run(["y"], {"x": x.astype(self.dtype)})[0], np.float64).reshape(len(x))

    def declined(self, count: int) -> np.ndarray:
        rows = np.random.default_rng(1).standard_normal((200, 5)).astype(self.dtype)
        if self.lacks:
            rows[::2, 0] = np.nan
        return rows[[d.decision != "approve" for d in self.entry.decide(rows)]][:count]

    def numbers(self, name: str, start: float | None) -> list[float]:
        """Return numbers of the lever on both sides of every split, as the rules allow."""
        lever, ends = self.levers[name], [np.asarray(self.entry.manifest.splits[name], self.dtype)]
        for side in (-np.inf, np.inf):
            for nearby in range(2):
                ends.append(np.nextafter(ends[-nearby], self.dtype(side)))
        numbers = np.concatenate(ends).astype(np.float64)
        if lever.step is not None:
            numbers = np.unique([np.round(numbers / lever.step) + k for k in (-1, 0, 1)]) * lever.step
        if start is None:
            numbers = np.concatenate(
                [numbers, (numbers[1:] + numbers[:-1]) / 2 if lever.step is None else []]
            )
        (low, high), (least, most) = lever.span(start), self.settled(name)
        numbers = np.concatenate([numbers, [end for end in (least, most) if np.isfinite(end)]])
        return [float(n) for n in numbers if max(low, least) <= n <= min(high, most)]

    def settled(self, name: str) -> tuple[float, float]:
        """Return the numbers by which no knock-out declines."""
        rule = self.rules["knock_outs"][0] if "knock_outs" in self.rules and name == "x0" else {}
        return rule.get("below", -np.inf), rule.get("above", np.inf)

    def cheapest(self, row: np.ndarray) -> tuple[float, bool]:
        """Return the least cost of all changes that certainly pass, and whether any may pass."""
        options = []
        for value, name in zip(row[:3].tolist(), ACTIONABLE, strict=True):
            start = None if np.isnan(value) else float(value)
            numbers = self.numbers(name, start)
            costs = self.levers[name].costs(start, np.array(numbers)).tolist()
            least, most = self.settled(name)
            own = [] if value < least or value > most else [(0.0, value)]
            options.append([*own, *zip(costs, numbers, strict=True)])
        every = [*product(*options)]
        changed = np.tile(row, (len(every), 1)).astype(np.float64)
        changed[:, :3] = [[number for _, number in choice] for choice in every]
        scores = self.scores(changed)
        bound = self.rules.get("refer", [0.0])[0]
        costs = np.array([sum(cost for cost, _ in choice) for choice in every])
        return float(costs[scores <= bound - 1e-5].min(initial=np.inf)), bool((scores <= bound).any())


CASES = {
    "any": Case({}, {}),
    "steps on which splits are": Case({"step": 0.1}, {}, digits=1),
    "wider steps": Case({"step": 0.3}, {}, digits=1),
    "up": Case({"direction": "up"}, {}),
    "down": Case({"direction": "down"}, {}),
    "most": Case({"most": 0.5}, {}),
    "a share": Case({"most": "60%"}, {}),
    "above a knock-out": Case({}, knock_out(above=0.5)),
    "below a knock-out": Case({"step": 0.1}, knock_out(below=-0.5), digits=1),
    "a band": Case({}, {"refer": [-0.3, 0.2]}),
    "lacks": Case({}, {}, lacks=True),
    "lacks steps": Case({"step": 0.1}, {}, digits=1, lacks=True),
    **{types: Case({}, {}, types=types) for types in TYPES},
}


@pytest.mark.parametrize("name", CASES)
def test_the_cheapest_plan_is_the_optimum_but_for_digits(name: str) -> None:
    case, planned = CASES[name], 0
    for row in case.declined(8):
        (found,) = case.entry.recourse(row[None])
        due, may_pass = case.cheapest(row)
        assert bool(found.plans) == np.isfinite(due)
        assert not (found.search == "complete" and may_pass)
        if found.plans:
            planned += 1
            assert found.plans[0].cost <= due * (1 + DEARER) + 1e-6
    assert planned > 1


@pytest.mark.parametrize("name", CASES)
def test_flip_points_are_where_the_decision_flips(name: str) -> None:
    """The number before them flips nothing: of the input's type, or the trees' if that is coarser."""
    case, tried = CASES[name], 0
    coarser = min(TYPES[case.types], key=lambda dtype: np.dtype(dtype).itemsize)
    for row in case.declined(8):
        for point in case.entry.recourse(row[None])[0].flip_points:
            i = NAMES.index(point.feature)
            if np.isnan(row[i]):
                continue
            assert point.exact
            changed = np.tile(row, (2, 1))
            changed[:, i] = point.value
            changed[1, i] = np.nextafter(coarser(changed[0, i]), coarser(row[i]))
            at, before = case.entry.decide(changed)
            assert (at.decision, before.decision != at.decision) == (point.to, True)
            tried += 1
    assert tried > 5


def test_steps_have_no_digits_of_rounding() -> None:
    case = CASES["steps on which splits are"]
    for row in case.declined(8):
        for plan in case.entry.recourse(row[None])[0].plans:
            assert all(len(str(abs(value))) <= 3 for value in plan.changes.values()), plan.changes
