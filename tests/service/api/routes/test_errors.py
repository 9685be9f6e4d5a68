"""Every way to be wrong, and what is answered: RFC 9457, with OIP's `error` member."""

import gzip
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import orjson
import pytest

from rationale_service.app import create_app, create_backend
from rationale_service.errors import QueueFullError
from rationale_service.settings import Settings
from tests.service.conftest import gateway
from tests.service.faulty import FaultyBackend
from tests.service.in_process import client_of

pytestmark = pytest.mark.asyncio(loop_scope="session")

INFER = "/v2/models/score/infer"
GOOD = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}


def problem(answer: httpx.Response, status: int, slug: str, message: str = "") -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    document = answer.json()
    assert document.keys() == {"type", "title", "status", "detail", "instance", "error"}
    assert document["type"] == f"urn:rationale:problem:{slug}"
    assert document["status"] == status
    assert document["instance"] == answer.request.url.path
    assert document["error"] == f"{document['title']}: {document['detail']}"
    assert message in document["detail"]
    return document


@pytest.mark.parametrize(
    ("path", "instead"),
    [
        ("systemsharedmemory/status", "send the tensors themselves"),
        ("systemsharedmemory/region/mine/register", "send the tensors themselves"),
        ("cudasharedmemory/unregister", "send the tensors themselves"),
        ("trace/setting", "RATIONALE_TRACE_ENDPOINT"),
        ("models/score/trace/setting", "RATIONALE_TRACE_ENDPOINT"),
        ("logging", "RATIONALE_LOG_LEVEL"),
    ],
)
async def test_what_is_not_offered_says_what_to_do(
    client: httpx.AsyncClient, path: str, instead: str
) -> None:
    for method in ("GET", "POST"):
        problem(await client.request(method, f"/v2/{path}"), 501, "not-offered", instead)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "not valid JSON"),
        (b'{"inputs": [', "not valid JSON"),
        (b'{"inputs": [NaN]}', "send null for a missing value, or binary tensors"),
        (b'{"inputs": [1,\n -Infinity]}', "send null for a missing value, or binary tensors"),
        (b"[" * 100_000, "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[]", "the body: Input should be"),
        (b"{}", "inputs: Field required"),
        (b'{"inputs": {}}', "inputs: Input should be a valid list"),
        (b'{"inputs": [3]}', "inputs.0: "),
        (b'{"inputs": [{"name": "x"}]}', "inputs.0.shape: Field required"),
        (orjson.dumps({"inputs": [GOOD | {"shape": ["1", 4]}]}), "inputs.0.shape.0: "),
        (orjson.dumps({"inputs": [GOOD | {"data": "abc"}]}), "data must be a list, not a string"),
        (orjson.dumps({"inputs": [GOOD | {"data": None}]}), "data must be a list, not null"),
        (orjson.dumps({"inputs": [GOOD], "parameters": {"timeout": "soon"}}), "parameters.timeout"),
        (orjson.dumps({"inputs": [GOOD], "id": 7}), "id: "),
    ],
)
async def test_400(client: httpx.AsyncClient, body: bytes, message: str) -> None:
    for path in (INFER, "/v2/models/score/explain"):
        problem(await client.post(path, content=body), 400, "malformed-request", message)


@pytest.mark.parametrize(
    ("method", "path", "slug", "message"),
    [
        ("POST", "/v2/models/absent/infer", "unknown-model", "no model 'absent' here; there are: 'image',"),
        ("POST", "/v2/models/score/versions/2/infer", "unknown-model", "no version '2'; version 1 is served"),
        ("POST", "/v2/models/typed/explain", "not-explainable", "rationale compile MODEL.onnx"),
        ("POST", "/v1/models/typed:explain", "not-explainable", "--name typed"),
        ("POST", "/v1/models/absent:predict", "unknown-model", "no model 'absent'"),
        ("GET", "/v2/models/absent", "unknown-model", "no model 'absent'"),
        ("GET", "/v2/models/absent/ready", "unknown-model", "no model 'absent'"),
        ("GET", "/v1/models/absent", "unknown-model", "no model 'absent'"),
        ("GET", "/v2/models/..%2f..%2fetc", "not-found", "nothing at this path"),
        ("GET", "/nothing", "not-found", "nothing at this path"),
    ],
)
async def test_404(client: httpx.AsyncClient, method: str, path: str, slug: str, message: str) -> None:
    answer = await client.request(method, path, json={"instances": [], "inputs": []})
    problem(answer, 404, slug, message)


async def test_405(client: httpx.AsyncClient) -> None:
    answer = await client.get(INFER)
    problem(answer, 405, "method-not-allowed", "GET is not allowed here, only POST")
    assert answer.headers["allow"] == "POST"


async def test_413_by_the_announced_length(repository: Path) -> None:
    async with gateway(Settings(repository=repository, max_body_bytes=1000)) as client:
        answer = await client.post(INFER, content=b" " * 1001)
        problem(answer, 413, "too-large", "more than 1000 bytes")
        assert answer.headers["connection"] == "close"
        fits = orjson.dumps({"inputs": [GOOD]}).ljust(1000)
        assert (await client.post(INFER, content=fits)).status_code == 200


@pytest.mark.parametrize("limit", ["max_body_bytes", "max_json_bytes"])
async def test_413_stops_reading_a_body_without_a_length(repository: Path, limit: str) -> None:
    """20 MB in chunks: what is read is bounded by the limit, not by the body."""
    read = 0

    async def chunks() -> AsyncIterator[bytes]:
        nonlocal read
        for _ in range(320):
            read += 1
            yield b" " * 65536

    async with gateway(Settings.model_validate({"repository": repository, limit: 1_000_000})) as client:
        problem(await client.post(INFER, content=chunks()), 413, "too-large")
    assert read == 1_000_000 // 65536 + 1


async def test_413_for_what_a_small_body_inflates_to(repository: Path) -> None:
    async with gateway(Settings(repository=repository, max_body_bytes=1_000_000)) as client:
        headers = {"Content-Encoding": "gzip"}
        problem(
            await client.post(INFER, content=gzip.compress(b" " * 20_000_000), headers=headers),
            413,
            "too-large",
        )
        broken = await client.post(INFER, content=b"not gzip", headers=headers)
        problem(broken, 400, "malformed-request", "Content-Encoding")
        half = gzip.compress(b'{"inputs": []}')[:-9]
        problem(
            await client.post(INFER, content=half, headers=headers), 400, "malformed-request", "too early"
        )


# What curl names where it is not told: of every body, and with an upload nothing at all.
CURLS: list[dict[str, str]] = [
    {"Content-Type": "application/x-www-form-urlencoded"},
    {"Content-Type": ""},
    {},
]


@pytest.mark.parametrize("headers", CURLS)
@pytest.mark.parametrize("path", [INFER, "/v2/models/score/explain"])
async def test_json_by_curls_own_content_type(
    client: httpx.AsyncClient, path: str, headers: dict[str, str]
) -> None:
    answer = await client.post(path, content=orjson.dumps({"inputs": [GOOD]}), headers=headers)
    assert answer.status_code == 200, answer.text
    answer = await client.post(path, content=b"income=24500&term_months=60", headers=headers)
    problem(answer, 400, "malformed-request", "not valid JSON")
    assert "Content-Type" in answer.json()["detail"]


@pytest.mark.parametrize("headers", CURLS)
@pytest.mark.parametrize("verb", ["predict", "explain"])
async def test_named_features_by_curls_own_content_type(
    client: httpx.AsyncClient, verb: str, headers: dict[str, str]
) -> None:
    body = orjson.dumps({"instances": [[1, 2, 3, 4], [4, 3, 2, 1]]})
    answer = await client.post(f"/v1/models/score:{verb}", content=body, headers=headers)
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["predictions"]) == 2


@pytest.mark.parametrize("path", [INFER, "/v1/models/score:predict"])
async def test_415(client: httpx.AsyncClient, path: str) -> None:
    for media_type in ("text/csv", "multipart/form-data; boundary=x", "image/png"):
        answer = await client.post(path, content=b"{}", headers={"Content-Type": media_type})
        problem(answer, 415, "unsupported-media-type", "send application/json")
    answer = await client.post(path, content=b"{}", headers={"Content-Encoding": "br"})
    problem(answer, 415, "unsupported-media-type", "send gzip or deflate")


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([], "missing input 'x'"),
        ([GOOD, GOOD], "'x' is given twice"),
        ([GOOD | {"name": "z"}], "unknown input 'z': model 'score' takes 'x'"),
        ([GOOD | {"shape": [4]}], "has shape [4], but the model takes [-1, 4]"),
        ([GOOD | {"shape": [2, 2]}], "has shape [2, 2], but the model takes [-1, 4]"),
        ([GOOD | {"shape": [1, 5]}], "has 4 values, but its shape [1, 5] holds 5"),
        ([GOOD | {"shape": [-1, 4]}], "negative size"),
        ([GOOD | {"shape": [0, 4], "data": []}], "is empty: send at least one row"),
        ([GOOD | {"shape": [2**62, 2**62], "data": []}], "is too large"),
        ([GOOD | {"shape": [0, 2**63 - 1], "data": []}], "is too large"),
        ([GOOD | {"shape": [1] * 40}], "is too large"),
        ([GOOD | {"shape": []}], "has 4 values, but its shape [] holds 1"),
        ([GOOD | {"shape": [], "data": [1]}], "has shape [], but"),
        ([GOOD | {"datatype": "FP64"}], "input 'x' is FP64, but the model takes FP32"),
        ([GOOD | {"datatype": "FP33"}], "datatype 'FP33' must be one of BOOL"),
        ([GOOD | {"datatype": "BF16"}], "datatype 'BF16' must be one of BOOL"),
        ([GOOD | {"data": [1, 2, 3, "4"]}], "takes numbers, but value 3 is a string"),
        (
            [GOOD | {"data": [1, 2, 3, None]}],
            "holds nan at [0, 3], a missing value, which the model does not",
        ),
        ([GOOD | {"data": [1, 2, 3, True]}], "takes numbers, but value 3 is a boolean"),
        ([GOOD | {"data": [[1, 2], [3, 4]]}], "says shape [1, 4], but its data has [2, 2]"),
        ([GOOD | {"data": [[1, 2], [3]]}], "is ragged"),
        (
            [GOOD | {"data": [1, 2, 3, 1e39]}],
            "holds inf at [0, 3]: send finite numbers within the range of FP32",
        ),
        ([GOOD | {"parameters": {"shared_memory_region": "r"}}], "shared memory is not supported"),
    ],
)
async def test_422_of_inputs(client: httpx.AsyncClient, inputs: list[Any], message: str) -> None:
    for path in (INFER, "/v2/models/score/explain", "/v2/models/score_explain/infer"):
        answer = await client.post(path, content=orjson.dumps({"inputs": inputs}))
        expected = message.replace("'score'", "'score_explain'") if "explain" in path else message
        detail = problem(answer, 422, "invalid-input", expected)["detail"]
        is_named = any(one["name"] == "x" for one in inputs)  # what is wrong with it is told, and no more
        assert ("missing input 'x'" in detail) is not is_named


async def test_422_of_outputs(client: httpx.AsyncClient) -> None:
    request = {"inputs": [GOOD], "outputs": [{"name": "z"}]}
    problem(await client.post(INFER, json=request), 422, "invalid-input", "unknown output 'z'")
    request = {"inputs": [GOOD], "outputs": [{"name": "y", "parameters": {"classification": 2}}]}
    problem(await client.post(INFER, json=request), 422, "invalid-input", "classification")


async def test_422_of_integers(client: httpx.AsyncClient) -> None:
    ids = {"name": "ids", "shape": [1, 1], "datatype": "INT64"}
    for value, message in [
        (2**63, f"{2**63} is outside the range of INT64"),
        (1.5, "takes whole numbers, but value 0 is 1.5"),
        ("1", "takes whole numbers, but value 0 is a string"),
    ]:
        answer = await client.post("/v2/models/table/infer", json={"inputs": [ids | {"data": [value]}]})
        problem(answer, 422, "invalid-input", message)


@pytest.mark.parametrize(("value", "message"), [(np.nan, "nan"), (np.inf, "inf"), (-np.inf, "-inf")])
async def test_422_of_non_finite_input(client: httpx.AsyncClient, value: float, message: str) -> None:
    x = np.array([[1, 2, 3, 4], [5, value, 7, 8]], np.float32)
    tensor = {"name": "x", "shape": [2, 4], "datatype": "FP32", "parameters": {"binary_data_size": 32}}
    head = orjson.dumps({"inputs": [tensor]})
    headers = {"Inference-Header-Content-Length": str(len(head))}
    answer = await client.post(INFER, content=head + x.tobytes(), headers=headers)
    problem(answer, 422, "invalid-input", f"input 'x' holds {message} at [1, 1]")


async def test_422_of_rows_that_differ(client: httpx.AsyncClient) -> None:
    a = {"name": "a", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}
    b = {"name": "b", "shape": [2, 2, 2], "datatype": "FP32", "data": [1] * 8}
    answer = await client.post("/v2/models/pair/infer", json={"inputs": [a, b]})
    problem(answer, 422, "invalid-input", "differ in their number of rows (axis 0): {'a': 1, 'b': 2}")


async def test_422_where_the_result_is_not_finite(client: httpx.AsyncClient) -> None:
    x = {"name": "x", "shape": [2, 1], "datatype": "FP32", "data": [1, -1]}
    answer = await client.post("/v2/models/log/infer", json={"inputs": [x]})
    problem(answer, 422, "not-finite", "model 'log' gives nan for output 'y' at [1, 0]")


async def test_422_where_the_model_refuses_values(client: httpx.AsyncClient) -> None:
    ids = {"name": "ids", "shape": [1, 1], "datatype": "INT64", "data": [3]}
    answer = await client.post("/v2/models/table/infer", json={"inputs": [ids]})
    document = problem(answer, 422, "invalid-input", "model 'table' cannot compute these values")
    assert "ONNXRuntime" not in document["detail"]
    shapes = [
        {"name": name, "shape": [1, n], "datatype": "FP32", "data": [1] * n}
        for name, n in (("x", 2), ("z", 3))
    ]
    answer = await client.post("/v2/models/open/infer", json={"inputs": shapes})
    problem(answer, 422, "invalid-input", "model 'open' cannot compute these values")


async def test_500_where_the_model_mixes_rows(client: httpx.AsyncClient) -> None:
    x = {"name": "x", "shape": [2, 1], "datatype": "FP32", "data": [1, -1]}
    answer = await client.post("/v2/models/mixing/infer", json={"inputs": [x]})
    problem(answer, 500, "model-failed", "mixes the rows of a batch")


async def test_429_says_when_to_come_back(repository: Path) -> None:
    async with gateway(Settings(repository=repository), FaultyBackend(QueueFullError("full"))) as client:
        answer = await client.post(INFER, json={"inputs": [GOOD]})
        problem(answer, 429, "queue-full", "full")
        assert answer.headers["retry-after"] == "1"


async def test_500_tells_nothing_of_the_inside(repository: Path) -> None:
    fault = RuntimeError("secret path /etc/shadow")
    async with gateway(Settings(repository=repository), FaultyBackend(fault)) as client:
        answer = await client.post(INFER, json={"inputs": [GOOD]})
        problem(answer, 500, "internal-error", "the server's log tells more")
        assert "secret" not in answer.text


async def test_503_while_loading_and_stopping(repository: Path) -> None:
    settings = Settings(repository=repository, request_timeout_s=0.1)  # as long as an inference waits
    app = create_app(settings, create_backend(settings))
    async with client_of(app) as client:  # without lifespan nothing is loaded yet
        for path in ("/v2/health/ready", "/v2/models/score/ready"):
            answer = await client.get(path)
            problem(answer, 503, "not-ready", "being loaded")
        answer = await client.post(INFER, json={"inputs": [GOOD]})
        problem(answer, 503, "not-ready", "being loaded")
        assert answer.headers["retry-after"] == "1"
        assert (await client.get("/v2/health/live")).status_code == 200
        assert (await client.get("/v1/models/score")).json()["ready"] is False
        app.state.gateway.plane.refuse_new_work()
        problem(await client.get("/v2/health/ready"), 503, "not-ready", "stopping")


async def test_503_when_the_backend_is_gone(repository: Path) -> None:
    backend = FaultyBackend(None)
    async with gateway(Settings(repository=repository), backend) as client:
        assert (await client.get("/v2/health/ready")).status_code == 200
        backend.up = False
        problem(await client.get("/v2/health/ready"), 503, "not-ready", "backend does not answer")
