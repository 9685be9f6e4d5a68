"""The receipt's own rules beside those that decided, at every limit, and how far its numbers may be off."""

import json
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rationale import DeepShap, compile_model
from rationale.decisions.decide import find_knock_outs, outcome_of
from rationale.schema.profile import DecisionProfile
from rationale_service.decisions.audit.ledger import open_ledger
from rationale_service.decisions.records.check import decide
from rationale_service.decisions.records.receipt import write_receipt
from rationale_service.decisions.records.replay import Replayer
from tests.compiler.models import parsed
from tests.service.decisions.decided import decide_all
from tests.service.decisions.receipts.test_receipt import check


def profile_of(**members: Any) -> tuple[DecisionProfile, dict[str, Any]]:
    """A profile, and as a receipt has it."""
    profile = DecisionProfile.model_validate({"output": "y", "threshold": 0.5, "adverse": "above"} | members)
    return profile, profile.model_dump(mode="json")


Band = tuple[float, float] | None
BANDS: list[Band] = [None, (0.4, 0.5), (0.5, 0.6), (0.5, 0.5), (0.3, 0.7), (0.6, 0.7)]


@pytest.mark.parametrize("band", BANDS, ids=str)
@pytest.mark.parametrize("adverse", ["above", "below"])
def test_a_receipt_decides_a_score_as_the_profile_does(
    adverse: str, band: tuple[float, float] | None
) -> None:
    profile, as_json = profile_of(adverse=adverse, refer=band)
    ends = [0.5, *(band or ())]
    scores = [float(x) for end in ends for x in (np.nextafter(end, -1), end, np.nextafter(end, 2))]
    assert [decide(as_json, {}, score)[0] for score in scores] == [outcome_of(profile, s) for s in scores]


CONDITIONS = [
    {"above": 2},
    {"below": 2},
    {"above": 2, "below": 4},
    {"equals": 2},
    {"equals": True},
    {"equals": "2"},
    {"above": 0},
]
VALUES: list[Any] = [None, 1, 2, 2.0, 2.5, 4, 5, 0, True, False, "2", "own"]


@pytest.mark.parametrize("condition", CONDITIONS, ids=str)
def test_a_receipt_knocks_out_what_the_profile_does(condition: dict[str, Any]) -> None:
    rule = {"feature": "x", "reason": "R", **condition}
    profile, as_json = profile_of(knock_outs=[rule])
    for value in VALUES:
        decision, reasons = decide(as_json, {"x": value}, 0.1)
        is_hit = bool(find_knock_outs(profile, {"x": value}))
        assert (decision, list(reasons)) == (("decline", ["R"]) if is_hit else ("approve", [])), value


@pytest.fixture(scope="module", params=[1.0, 1e-4], ids=["ones", "ten thousandths"])
def receipt(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """A receipt whose numbers are of some size, and that size."""
    folder, size = tmp_path_factory.mktemp("receipt"), float(request.param)
    model = parsed(
        "g (float[N, 3] x) => (float[N, 1] y) { y = MatMul (x, w) }",
        {"w": np.array([[1], [2], [4]], np.float32) * np.float32(size)},
    )
    profile = {"output": "y", "threshold": size, "adverse": "above", "output_range": [-9 * size, 9 * size]}
    compiled = compile_model(
        model, DeepShap(np.zeros((2, 3), np.float32)), feature_names=["a", "b", "c"], decision=profile
    )
    compiled.write(folder / "models", "m")
    decided = decide_all(folder / "models", {"m": [{"a": 0.5, "b": 0.25, "c": 0.5}]})
    with closing(open_ledger(decided.settings)) as store:
        (decision,) = store.in_order()
    write_receipt(decision, Replayer(decided.settings).entry(decision), folder / "receipt")
    return folder / "receipt", size


NUMBERS = [("score",), ("explained_value",), ("base_value",), ("attributions", "a"), ("completeness_gap",)]


def test_a_number_may_be_off_by_rounding_alone(receipt: tuple[Path, float]) -> None:
    """By a share of the largest, which is 3 in units of the size: 1e-4 of it, and no fixed number."""
    folder, size = receipt
    answer = json.loads((folder / "answer.json").read_text())
    cases = list(product(NUMBERS, [(0.5e-4, 0), (2e-4, 1)]))
    copies = []
    for i, (path, (share, _)) in enumerate(cases):
        changed = json.loads(json.dumps(answer))
        inner = changed if len(path) == 1 else changed[path[0]]
        inner[path[-1]] += share * 3 * size
        copies.append(folder.parent / f"changed-{i}")
        copies[-1].mkdir()
        for file in folder.iterdir():
            (copies[-1] / file.name).write_bytes(file.read_bytes())
        (copies[-1] / "answer.json").write_text(json.dumps(changed))
    assert [code for code, _ in check(*copies)] == [code for _, (_, code) in cases]
