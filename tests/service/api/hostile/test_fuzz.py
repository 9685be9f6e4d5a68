"""Random JSON: whatever a caller sends, it is never a 500 and always a problem document.

Mangled bytes and tensors are sent over real connections (tests/service/clients/test_fuzz_wire.py).
"""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rationale_service.settings import Settings
from tests.service.conftest import gateway
from tests.service.handmade import FEATURES

# The same examples in each run, and no measure of how long they take to be made.
FUZZ = settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
PATHS = (
    "/v2/models/score/infer",
    "/v2/models/score/explain",
    "/v2/models/pair/explain",
    "/v2/models/typed/infer",
    "/v2/models/open/infer",
    "/v1/models/score:predict",
    "/v1/models/pair:explain",
    "/v1/models/typed:predict",
    "/v1/models/score:decide",
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | st.sampled_from(["x", "a", "b", "ids", "text", "income", "FP32", "INT64", "BYTES"])
)
KEYS = st.sampled_from(
    [
        "inputs",
        "outputs",
        "instances",
        "name",
        "shape",
        "datatype",
        "data",
        "parameters",
        "x",
        "income",
        "left",
    ]
)
TREES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS | st.text(max_size=3), inner),
    max_leaves=12,
)
TENSORS = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["x", "a", "b", "z", "ids", "text"]),
        "shape": st.lists(st.integers(-2, 5) | st.sampled_from([2**31, 2**63 - 1]), max_size=4),
        "datatype": st.sampled_from(["FP32", "FP64", "INT64", "BOOL", "BYTES", "BF16", "UINT8"]),
    },
    optional={
        "data": st.lists(SCALARS, max_size=8) | TREES,
        "parameters": st.dictionaries(st.sampled_from(["binary_data_size", "shared_memory_region"]), SCALARS),
    },
)
REQUESTS = st.fixed_dictionaries(
    {"inputs": st.lists(TENSORS, max_size=3)},
    optional={
        "id": SCALARS,
        "outputs": st.lists(st.fixed_dictionaries({"name": SCALARS}), max_size=2),
        "parameters": st.dictionaries(st.sampled_from(["timeout", "binary_data_output"]), SCALARS),
    },
)
INSTANCES = st.fixed_dictionaries({"instances": st.lists(TREES, max_size=3)})


@pytest.fixture(scope="module")
def post(repository: Path) -> Iterator[Any]:
    """Posts to a gateway that lives in a loop of this module, since hypothesis calls plain functions."""
    with asyncio.Runner() as runner:
        stack = contextlib.AsyncExitStack()
        client: httpx.AsyncClient = runner.run(
            stack.enter_async_context(gateway(Settings(repository=repository)))
        )
        yield lambda path, content, **headers: runner.run(client.post(path, content=content, headers=headers))
        runner.run(stack.aclose())


def check(answer: httpx.Response) -> None:
    if answer.status_code == 200:
        return
    assert answer.status_code in (400, 422), answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    document = answer.json()
    assert document["status"] == answer.status_code
    assert document["detail"]
    assert len(document["detail"]) < 2000


@pytest.mark.full
@FUZZ
@given(path=st.sampled_from(PATHS), tree=TREES | REQUESTS | INSTANCES)
def test_random_json(post: Any, path: str, tree: Any) -> None:
    check(post(path, orjson.dumps(tree)))


@pytest.mark.full
@FUZZ
@given(
    value=st.floats(width=32, allow_nan=False, allow_infinity=False),
    column=st.integers(0, 3),
    verb=st.sampled_from(["explain", "decide"]),
)
def test_extreme_numbers(post: Any, value: float, column: int, verb: str) -> None:
    row = dict(zip(FEATURES, [1.0, 2.0, 3.0, 4.0], strict=True))
    row[FEATURES[column]] = value
    check(post(f"/v1/models/score:{verb}", orjson.dumps({"instances": [row]})))
