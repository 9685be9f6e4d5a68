"""The answer cache: nothing but the same request has the same answer, and no more is held than may be."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rationale_service.engine.response_cache import ResponseCache
from rationale_service.observability.metrics import Metrics
from rationale_service.repository.entry import Entry
from rationale_service.repository.registry import read_repository
from rationale_service.settings import Settings
from tests.service.conftest import gateway
from tests.service.handmade import X

INPUTS = {"x": X[:2]}
ANSWER = {"y": np.arange(6.0, dtype=np.float32).reshape(2, 3)}


@pytest.fixture(scope="module")
def entry(repository: Path) -> Entry:
    return read_repository(repository).explainer("score")


def cache(limit: int = 1 << 20) -> ResponseCache:
    return ResponseCache(limit, Metrics().cache("answers"))


def place(of: ResponseCache, entry: Entry, inputs: Any = None, outputs: Any = ("y",)) -> tuple[int, bytes]:
    actual = of.key(entry, INPUTS if inputs is None else inputs, outputs)
    assert actual is not None
    return actual


def test_the_same_request_has_the_same_answer(entry: Entry) -> None:
    answers = cache()
    assert answers.find(place(answers, entry)) is None
    answers.keep(place(answers, entry), ANSWER)
    actual = answers.find(place(answers, entry, {"x": INPUTS["x"].copy()}))
    assert actual is not None
    np.testing.assert_array_equal(actual["y"], ANSWER["y"])


def other(entry: Entry, **digests: str) -> Entry:
    assert entry.manifest is not None
    changed = entry.manifest.digests.model_copy(update=digests)
    return replace(entry, manifest=entry.manifest.model_copy(update={"digests": changed}))


def test_the_order_of_inputs_is_no_part_of_a_request(entry: Entry) -> None:
    answers, (a, b) = cache(), (X[:2], X[2:4])
    assert place(answers, entry, {"x": a, "z": b}) == place(answers, entry, {"z": b, "x": a})
    assert place(answers, entry, {"x": a, "z": b}) != place(answers, entry, {"x": b, "z": a})


OTHER_ITEMS: dict[str, Callable[[Entry], tuple[Entry, Any, Any]]] = {
    "value": lambda e: (e, {"x": X[1:3]}, ("y",)),
    "shape": lambda e: (e, {"x": X[:2].reshape(4, 2)}, ("y",)),
    "dtype": lambda e: (e, {"x": X[:2].view(np.int32)}, ("y",)),
    "name": lambda e: (e, {"z": X[:2]}, ("y",)),
    "rows": lambda e: (e, {"x": X[:1]}, ("y",)),
    "more inputs": lambda e: (e, {"x": X[:2], "z": X[:2]}, ("y",)),
    "outputs": lambda e: (e, INPUTS, ("base_value",)),
    "order of outputs": lambda e: (e, INPUTS, ("base_value", "y")),
    "version": lambda e: (replace(e, version="2"), INPUTS, ("y",)),
    "entry": lambda e: (replace(e, name="another_explain"), INPUTS, ("y",)),
    "model": lambda e: (other(e, model="0" * 64), INPUTS, ("y",)),
    "references": lambda e: (other(e, references="0" * 64), INPUTS, ("y",)),
    "options": lambda e: (other(e, explanation="0" * 64), INPUTS, ("y",)),
}


@pytest.mark.parametrize("case", OTHER_ITEMS)
def test_another_request_has_another_answer(entry: Entry, case: str) -> None:
    answers = cache()
    for outputs in (("y",), ("y", "base_value")):
        answers.keep(place(answers, entry, outputs=outputs), ANSWER)
    assert answers.find(place(answers, *OTHER_ITEMS[case](entry))) is None


def test_strings_are_told_apart(entry: Entry) -> None:
    answers = cache()
    first, second = (np.array(words, object) for words in ([b"ab", b"c"], [b"a", b"bc"]))
    answers.keep(place(answers, entry, {"x": first}), ANSWER)
    assert answers.find(place(answers, entry, {"x": second})) is None


def test_the_least_recently_used_goes_first(entry: Entry) -> None:
    answers = cache(limit=2000)
    first, second, third = (place(answers, entry, {"x": X[i : i + 1]}) for i in range(3))
    large = {"y": np.zeros(64)}  # 512 bytes, and as much for itself
    for answer in (first, second):
        answers.keep(answer, {"y": np.zeros(32)})
    assert answers.find(first)
    answers.keep(third, large)
    assert answers.find(first)
    assert answers.find(second) is None
    assert answers.size <= 2000


@pytest.mark.parametrize(("more", "is_kept"), [(-1, False), (0, True), (1, True)])
def test_what_is_too_large_is_not_kept(entry: Entry, more: int, is_kept: bool) -> None:
    measured = cache()
    measured.keep(place(measured, entry), ANSWER)
    answers = cache(limit=measured.size + more)
    answers.keep(place(answers, entry), ANSWER)
    assert answers.size == measured.size * is_kept


def test_nothing_of_before_a_clear_comes_back(entry: Entry) -> None:
    answers = cache()
    key = place(answers, entry)
    answers.keep(key, ANSWER)
    answers.clear()
    assert answers.size == 0
    answers.keep(key, ANSWER)  # it was being computed meanwhile
    assert answers.find(place(answers, entry)) is None
    assert answers.size == 0


def test_what_is_kept_is_nobody_elses(entry: Entry) -> None:
    answers = cache()
    batch = np.zeros((100, 3), np.float32)
    answers.keep(place(answers, entry), {"y": batch[:2]})
    batch[:] = 7
    actual = answers.find(place(answers, entry))
    assert actual is not None
    assert actual["y"].base is None
    np.testing.assert_array_equal(actual["y"], 0)
    with pytest.raises(ValueError, match="read-only"):
        actual["y"][0] = 1


def test_predictions_are_not_kept(repository: Path) -> None:
    assert cache().key(read_repository(repository).entry("score"), INPUTS, ("y",)) is None


async def test_the_gateway_answers_from_it(repository: Path) -> None:
    body = {"inputs": [{"name": "x", "shape": [2, 4], "datatype": "FP32", "data": X[:2].tolist()}]}
    async with gateway(Settings(repository=repository, answer_cache_bytes=1 << 20)) as client:
        first, second = [await client.post("/v2/models/score/explain", json=body) for _ in range(2)]
        page = (await client.get("/metrics")).text
    assert first.json()["outputs"] == second.json()["outputs"]
    assert 'rationale_cache_requests_total{cache="answers",result="hit"} 1.0' in page
    assert 'rationale_cache_requests_total{cache="answers",result="miss"} 1.0' in page
