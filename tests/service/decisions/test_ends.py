"""Thresholds near 0 and 1: every way decides by the margin, which a Sigmoid of float32 mixes up."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rationale import Compiled, DeepShap, compile_model, decide_batches, load
from rationale.evaluate.decisions.moved import scorer
from rationale.profiles.scores import score_rows
from rationale_service.decisions.audit.ledger import open_ledger
from rationale_service.decisions.records.receipt import write_receipt
from rationale_service.decisions.records.replay import Replayer
from rationale_service.settings import Settings
from tests.compiler.models import parsed
from tests.service.decisions.decided import Decided, decide_all
from tests.service.decisions.portfolio.test_portfolio import decide, lines, table
from tests.service.decisions.receipts.test_receipt import check
from tests.service.decisions.test_grpc import decisions, request, without_ids
from tests.service.grpc_end import grpc_end

STEPS = np.arange(-18, 18, dtype=np.float32) / 64  # which margins are away from the threshold's
# of a Sigmoid, and of the second of two classes: 1e-8 from 0 and from 1
MODELS = {
    "one": parsed("g (float[N, 2] x) => (float[N, 1] p) { z = MatMul (x, w)  p = Sigmoid (z) }",
                  {"w": np.ones((2, 1), np.float32)}),
    "two": parsed("g (float[N, 2] x) => (float[N, 2] p) { z = MatMul (x, w)  p = Softmax <axis = 1> (z) }",
                  {"w": np.array([[0, 1], [0, 1]], np.float32)}),
}  # fmt: skip
THRESHOLDS = {"low": 1e-8, "high": 1 - 1e-8}
NAMES = [f"{model}-{end}-{space}" for model in MODELS for end in THRESHOLDS for space in ("margin", "output")]


def margin_of(end: str) -> float:
    return float(np.log(THRESHOLDS[end]) - np.log1p(-THRESHOLDS[end]))


def compiled(name: str, **change: Any) -> Compiled:
    model, end, space = name.split("-")
    profile = {"output": "p", "threshold": THRESHOLDS[end], "adverse": "above", "space": space, **change}
    references = np.full((3, 2), margin_of(end) / 2 - 1, np.float32)
    return compile_model(MODELS[model], DeepShap(references), feature_names=["a", "b"], decision=profile)


def rows(name: str) -> list[dict[str, float]]:
    base = np.round(margin_of(name.split("-")[1]) * 64) / 64
    return [{"a": float(base), "b": float(step)} for step in STEPS]


def expected_decisions(name: str) -> list[str]:
    away = [row["a"] + row["b"] - margin_of(name.split("-")[1]) for row in rows(name)]
    return ["decline" if by > 0 else "approve" for by in away]


@pytest.fixture(scope="module")
def decided(tmp_path_factory: pytest.TempPathFactory) -> Decided:
    folder = tmp_path_factory.mktemp("ends")
    for name in NAMES:
        compiled(name).write(folder / "models", name)
    return decide_all(folder / "models", {name: rows(name) for name in NAMES}, state=folder / "state")


def answers(decided: Decided, name: str) -> list[dict[str, Any]]:
    return [decided.answers[decision_id] for decision_id in decided.ids[name]]


@pytest.mark.parametrize("name", NAMES)
def test_http_decides_by_the_margin(decided: Decided, name: str) -> None:
    actual = answers(decided, name)
    assert {*expected_decisions(name)} == {"approve", "decline"}
    assert [decision["decision"] for decision in actual] == expected_decisions(name)
    scores = [decision["score"] for decision in actual]
    assert sorted(scores) == scores
    assert len({*scores}) == len(scores)
    for decision in actual:
        odds = np.log(decision["score"]) - np.log1p(-decision["score"])
        if "margin" in name:
            assert odds == pytest.approx(decision["explained_value"], abs=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_every_way_decides_as_http_does(decided: Decided, tmp_path: Path, name: str) -> None:
    repository, expected = Path(decided.settings.repository), answers(decided, name)
    pairs = [(decision["decision"], decision["score"]) for decision in expected]
    table_of_rows = pa.Table.from_pylist(rows(name))
    actual = [row for batch in decide_batches(repository / name, table_of_rows) for row in batch.to_pylist()]
    assert [(row["decision"], row["score"]) for row in actual] == pairs
    assert [
        (decision.decision, decision.score) for decision in load(repository, name).decide(table_of_rows)
    ] == pairs
    save = tmp_path / "decisions.jsonl"
    status, _, output = decide(
        name, "--input", table(tmp_path, rows(name)), "--save", save, "--repository", repository
    )
    assert status == 0, output
    assert [
        (decision["decision"]["decision"], decision["decision"]["score"]) for decision in lines(save)
    ] == pairs


@pytest.mark.parametrize("name", NAMES)
def test_references_and_moved_reasons_have_the_scores_of_decisions(decided: Decided, name: str) -> None:
    entry = load(decided.settings.repository, name)
    expected = [answer["score"] for answer in answers(decided, name)]
    inputs = entry.fit(pa.Table.from_pylist(rows(name)))
    assert [*scorer(entry, inputs)(inputs)[1]] == expected
    assert entry.manifest.decision is not None
    actual = score_rows(entry.source, {None: inputs["x"]}, entry.manifest.decision.profile)
    assert [*actual.scores] == expected


@pytest.mark.parametrize("name", NAMES)
async def test_grpc_decides_as_http_does(decided: Decided, tmp_path: Path, name: str) -> None:
    settings = Settings(repository=decided.settings.repository, state=tmp_path / "state")
    async with grpc_end(settings) as end:
        answered = decisions(await end.stub.ModelInfer(request(f"{name}:decide", rows(name))))
    assert [*map(without_ids, answered)] == [*map(without_ids, answers(decided, name))]


@pytest.mark.parametrize("name", [name for name in NAMES if "margin" in name])
def test_explanations_are_of_the_margin_that_decides(decided: Decided, name: str) -> None:
    entry = load(decided.settings.repository, name)
    answer = entry.explain(pa.Table.from_pylist(rows(name)))
    explained = answer[entry.manifest.explained_value][:, 0]
    assert [*np.where(explained > margin_of(name.split("-")[1]), "decline", "approve")] == expected_decisions(
        name
    )


def test_receipts_and_replays_repeat_them(decided: Decided, tmp_path: Path) -> None:
    replayer, store, receipts = Replayer(decided.settings), open_ledger(decided.settings), []
    by_id = {decision.id: decision for decision in store.in_order()}
    store.close()
    for name in NAMES:
        for decision_id in decided.ids[name][::7]:
            receipts.append(tmp_path / decision_id)
            write_receipt(by_id[decision_id], replayer.entry(by_id[decision_id]), receipts[-1])
            assert replayer.replay(by_id[decision_id]).differences == ()
    for code, checked in check(*receipts):
        assert code == 0, checked
