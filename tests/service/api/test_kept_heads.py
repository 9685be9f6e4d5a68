"""The JSON before binary tensors is read once for all who write the same; nobody gets another's request."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from service.api import v2_codec as oip
from service.errors import InvalidInputError, MalformedError, ServiceError

TENSOR = {"name": "x", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 8}}


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    oip._kept.clear()
    yield
    oip._kept.clear()


def decoded(message: Any, *values: float) -> oip.Request:
    head = json.dumps(message).encode()
    return oip.decode_request(head + np.array(values, "<f4").tobytes(), str(len(head)))


def test_the_same_words_with_other_values() -> None:
    message = {
        "inputs": [TENSOR],
        "outputs": [{"name": "y", "parameters": {"binary_data": True}}],
        "parameters": {"timeout": 5_000_000, "explainer": "own"},
    }
    first, second = decoded(message, 1, 2), decoded(message, 3, 4)
    np.testing.assert_array_equal(first.inputs["x"], [[1, 2]])
    np.testing.assert_array_equal(second.inputs["x"], [[3, 4]])
    assert len(oip._kept) == 1
    for each in (first, second):
        assert (each.outputs, each.binary) == (("y",), {"y": True})
        assert (each.timeout_s, each.explainer) == (5.0, "own")


def test_where_the_json_ends_is_said_by_each_request() -> None:
    decoded({"inputs": [TENSOR]}, 1, 2)
    head = json.dumps({"inputs": [TENSOR]}).encode()
    with pytest.raises(MalformedError):
        oip.decode_request(head + bytes(8), str(len(head) - 1))
    with pytest.raises(MalformedError):
        oip.decode_request(head + bytes(8), None)


@pytest.mark.parametrize(
    "message",
    [
        {"inputs": [TENSOR], "id": "one"},
        {"inputs": [TENSOR, {"name": "z", "datatype": "FP32", "shape": [1, 1], "data": [0.5]}]},
        {"inputs": [TENSOR], "parameters": {"more": "x" * oip._LONGEST_KEPT}},
    ],
)
def test_what_is_of_one_request_is_not_kept(message: Any) -> None:
    for _ in range(2):
        np.testing.assert_array_equal(decoded(message, 1, 2).inputs["x"], [[1, 2]])
    assert not oip._kept


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ({"inputs": [{**TENSOR, "name": 1}]}, MalformedError),
        ({"inputs": [{**TENSOR, "parameters": {"shared_memory_region": "a"}}]}, InvalidInputError),
        ({"inputs": [TENSOR, TENSOR]}, InvalidInputError),
        ({"inputs": [{**TENSOR, "shape": [1, 3]}]}, InvalidInputError),
        ({"inputs": [TENSOR], "parameters": {"timeout": "soon"}}, MalformedError),
    ],
)
def test_what_is_wrong_is_wrong_each_time(message: Any, error: type[ServiceError]) -> None:
    for _ in range(2):
        with pytest.raises(error):
            decoded(message, 1, 2).faults.tell()


def test_whoever_writes_many_fills_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oip, "_MOST_KEPT", 3)
    for number in range(10):
        decoded({"inputs": [TENSOR], "parameters": {"number": number}}, 1, 2)
        assert len(oip._kept) <= 3
