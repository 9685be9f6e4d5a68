"""What is logged of a request, in which form, and that no value of it is."""

import io
import json
import logging
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from tritonclient.grpc import service_pb2_grpc

from rationale_service.observability import context as contexts
from rationale_service.observability import logs
from rationale_service.observability.context import RequestContext
from rationale_service.observability.logs import without_values
from rationale_service.protocols.interceptor import log_access
from rationale_service.settings import Settings
from tests.service import handmade, patient
from tests.service.child import grpc_address, ready_line, serve
from tests.service.conftest import gateway
from tests.service.messages import request, tensor

SECONDS = 60
VALUES = [73519.25, -86420.5, 95135.75, 64297.125]
TRACES = ("73519", "86420", "95135", "64297", "Ms Nobody")


@pytest.fixture
def root() -> Iterator[None]:
    """The root logger as it was."""
    logger = logging.getLogger()
    before = logger.handlers[:], logger.level
    yield
    logger.handlers[:], level = before
    logger.setLevel(level)


@pytest.mark.usefixtures("root")
async def test_lines_of_a_request_name_its_trace(tmp_path: Path) -> None:
    """Those on the way, and the access line, by either of which a trace is found."""
    handmade.write_score(tmp_path / "models")
    trace, span = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    stream = io.StringIO()
    async with gateway(Settings(repository=tmp_path / "models")) as client:
        logs.configure("info", "json", stream)
        await client.get("/v2/models/score", headers={"traceparent": f"00-{trace}-{span}-01"})
        await client.get("/v2/models/score")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    access = [line for line in lines if line["logger"] == "rationale.access"]
    assert [(line.get("trace_id"), line.get("span_id")) for line in access] == [(trace, span), (None, None)]


@pytest.mark.usefixtures("root")
def test_json_and_plain() -> None:
    for form in ("json", "auto", "plain"):
        stream = io.StringIO()
        logs.configure("info", form, stream)
        context = RequestContext("http", "GET /", "the-id", f"00-{'a' * 32}-{'b' * 16}-01")
        bound = contexts.bind(context)
        logging.getLogger("somewhere").warning("it is %s", "late", extra={"model": "credit"})
        contexts.unbind(bound)
        logging.getLogger("somewhere").debug("never seen")
        (line,) = stream.getvalue().splitlines()
        if form == "plain":
            assert all(
                piece in line for piece in ("warning", "it is late", "model=credit", "request_id=the-id")
            )
        else:
            actual = json.loads(line)
            assert actual.pop("time").endswith("Z")
            assert actual == {
                "level": "warning",
                "logger": "somewhere",
                "event": "it is late",
                "model": "credit",
                "request_id": "the-id",
                "trace_id": "a" * 32,
                "span_id": "b" * 16,
            }


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize("form", ["json", "plain"])
def test_tracebacks_without_the_values_of_variables(form: str) -> None:
    stream = io.StringIO()
    logs.configure("info", form, stream)
    income = VALUES
    try:
        raise ZeroDivisionError(len(income) * 0)
    except ZeroDivisionError:
        logging.getLogger("somewhere").exception("failed")
    assert "ZeroDivisionError" in stream.getvalue()
    assert "test_logs.py" in stream.getvalue()
    assert not [trace for trace in TRACES if trace in stream.getvalue()]


@pytest.mark.usefixtures("root")
def test_a_path_cannot_forge_a_line() -> None:
    stream = io.StringIO()
    logs.configure("info", "plain", stream)
    log_access(RequestContext("http", "GET /\n2026 error forged\x1b[31m", "id"), 0.001)
    assert len(stream.getvalue().splitlines()) == 1
    assert "\x1b" not in stream.getvalue()


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("idx=77 must be within [-3,2]", "idx=# must be within [#,#]"),
        ("value 1.5e-07 or nan", "value # or #"),
        ("1.5E7, -2E-3, +7e1, 3., -inf", "#, #, #, #, #"),
        ("node Gather_12 of opset 21", "node Gather_12 of opset #"),
        ("onnx runtime error 2: bad", "onnx runtime error #: bad"),
    ],
)
def test_numbers_are_taken_out_of_foreign_texts(text: str, cleaned: str) -> None:
    assert without_values(text) == cleaned


def send_requests(url: str, address: str) -> None:
    """Requests with VALUES in them: sound, refused and broken ones, by every end and form."""
    row = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": VALUES}
    v2 = f"{url}/v2/models/score"
    ids = {"x-request-id": "asked-by-me"}
    with httpx.Client(timeout=SECONDS) as client:
        assert client.post(f"{v2}/explain", json={"inputs": [row]}, headers=ids).status_code == 200
        assert client.post(f"{url}/v1/models/score:predict", json={"instances": [VALUES]}).status_code == 200
        head = json.dumps({"inputs": [{**row, "data": None, "parameters": {"binary_data_size": 16}}]})
        head = head.replace('"data": null, ', "")
        binary = client.post(
            f"{v2}/infer",
            content=head.encode() + np.array(VALUES, np.float32).tobytes(),
            headers={"Inference-Header-Content-Length": str(len(head))},
        )
        assert binary.status_code == 200
        for broken in (VALUES[:3], [*VALUES[:3], "Ms Nobody"], [*VALUES[:3], 1e300]):
            assert client.post(f"{v2}/infer", json={"inputs": [row | {"data": broken}]}).status_code == 422
        named = {"instances": [{"income": "Ms Nobody", "debt": VALUES[1]}]}
        assert client.post(f"{url}/v1/models/score:explain", json=named).status_code == 422
        assert client.post(f"{v2}/infer", content=b'{"inputs": [73519.25').status_code == 400
    with grpc.insecure_channel(address) as channel:
        stub: Any = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        stub.ModelInfer(request("score", tensor(fp32_contents=VALUES)))
        with pytest.raises(grpc.RpcError):
            stub.ModelInfer(request("score", tensor(shape=(1, 3), fp32_contents=VALUES[:3])))


@pytest.mark.parametrize("level", ["info", "debug"])
def test_one_line_for_a_request_and_no_value(
    repository: Path, monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    monkeypatch.setenv("RATIONALE_LOG_LEVEL", level)
    with serve("--repository", str(repository), "--port", "0") as child:
        url, lines = ready_line(child)
        send_requests(url, grpc_address(lines))
        patient.get(f"{url}/v2/health/ready")
        child.send_signal(signal.SIGTERM)
        out, err = child.communicate(timeout=SECONDS)
    assert not [trace for trace in TRACES if trace in out + err]
    saved_lines = [json.loads(line) for line in err.splitlines()]  # uvicorn's lines too
    assert "uvicorn.error" in {line["logger"] for line in saved_lines}
    access = [line for line in saved_lines if line["logger"] == "rationale.access"]
    assert [line["status"] for line in access] == [200, 200, 200, 422, 422, 422, 422, 400, 200, 422]
    first, last = access[0], access[-1]
    logged = {name: first[name] for name in ("request_id", "protocol", "operation", "model", "verb", "rows")}
    assert logged == {
        "request_id": "asked-by-me",
        "protocol": "http",
        "operation": "POST /v2/models/score/explain",
        "model": "score",
        "verb": "explain",
        "rows": 1,
    }
    assert first["duration_ms"] >= first["compute_ms"] > 0
    assert first["queue_ms"] >= 0
    assert (last["protocol"], last["problem"]) == ("grpc", "invalid-input")
    assert len({line["request_id"] for line in access}) == len(access)
