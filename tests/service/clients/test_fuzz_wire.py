"""Mangled messages over real connections, HTTP with binary tensors and gRPC: no fault of ours, no growth.

The gateway is a process of its own, so that it could crash and its memory is its own.
"""

import http.client
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc
import numpy as np
import orjson
import psutil
import pytest
from tritonclient.grpc import service_pb2 as pb

from tests.service import handmade
from tests.service.child import grpc_address, ready_line, serve
from tests.service.messages import GOOD, RAW, ROW, request, tensor, typed
from tests.triton import clients

MEBIBYTE = 1 << 20
GROWTH = 40 * MEBIBYTE
TIMEOUT_S = 60
METHOD = "/inference.GRPCInferenceService/"
# The caller's mistakes; also a timeout or deadline that the mangling made.
GRPC_CODES = {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "UNAVAILABLE"}
HTTP_CODES = {200, 400, 404, 408, 413, 415, 422, 429, 503, 504}

Mutate = Callable[[np.random.Generator, bytearray], bytearray]


# --- mangling -----------------------------------------------------------------------------------------


def flip(draw: np.random.Generator, body: bytearray) -> bytearray:
    for _ in range(draw.integers(1, 6)):
        body[draw.integers(len(body))] = draw.integers(256)
    return body


def cut(draw: np.random.Generator, body: bytearray) -> bytearray:
    return body[: draw.integers(1, len(body) + 1)]


def insert(draw: np.random.Generator, body: bytearray) -> bytearray:
    position = draw.integers(len(body) + 1)
    return body[:position] + bytearray(draw.bytes(int(draw.integers(1, 40)))) + body[position:]


def repeat(draw: np.random.Generator, body: bytearray) -> bytearray:
    start, end = sorted(draw.integers(len(body) + 1, size=2))
    return body[:end] + body[start:end] * int(draw.integers(1, 4)) + body[end:]


def enlarge(draw: np.random.Generator, body: bytearray) -> bytearray:
    """A number, or a length, becomes a huge one: as protobuf and as JSON write it."""
    position = draw.integers(len(body))
    huge = [b"\xff" * 9 + b"\x01", b"\xff\xff\xff\xff\x07", b"99999999999999999999", b"-1", b"1e999"]
    return body[:position] + bytearray(huge[draw.integers(len(huge))]) + body[position + 1 :]


MUTATIONS: Sequence[Mutate] = (flip, cut, insert, repeat, enlarge)


def mangled(draw: np.random.Generator, body: bytes) -> bytes:
    changed = bytearray(body)
    for _ in range(draw.integers(1, 4)):
        if changed:
            changed = MUTATIONS[int(draw.integers(len(MUTATIONS)))](draw, changed)
    return bytes(changed)


# --- what is sound ------------------------------------------------------------------------------------

IDS = np.array([[1, 250]])
TEXT = np.array([[b"a"]], dtype=np.object_)
GRPC_SAMPLES = [
    message.SerializeToString()
    for message in (
        request("score", GOOD, id="7"),
        request("score", raw_input_contents=[RAW], id="7"),
        request("score_explain", GOOD, parameters={"timeout": pb.InferParameter(int64_param=10**6)}),
        request("typed", typed("ids", IDS), typed("text", TEXT)),
        request(
            "typed",
            tensor("ids", "INT64", (1, 2)),
            tensor("text", "BYTES", (1, 1)),
            raw_input_contents=[IDS.tobytes(), b"\x01\0\0\0a"],
        ),
        request(
            "pair_explain",
            tensor("a", shape=(1, 2), fp32_contents=[1, 2]),
            tensor("b", shape=(1, 2, 2), fp32_contents=[1, 2, 3, 4]),
            outputs=[pb.ModelInferRequest.InferRequestedOutputTensor(name="y")],
        ),
    )
]


def binary(*tensors: tuple[str, str, tuple[int, ...], bytes]) -> tuple[bytes, int]:
    """A body with binary tensors, and the length of its JSON."""
    inputs = [
        {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": len(raw)}}
        for name, datatype, shape, raw in tensors
    ]
    head = orjson.dumps({"id": "7", "inputs": inputs, "parameters": {"binary_data_output": True}})
    return head + b"".join(raw for *_, raw in tensors), len(head)


HTTP_SAMPLES = [
    ("/v2/models/score/infer", *binary(("x", "FP32", (1, 4), RAW))),
    ("/v2/models/score/explain", *binary(("x", "FP32", (2, 4), RAW * 2))),
    (
        "/v2/models/typed/infer",
        *binary(("ids", "INT64", (1, 2), IDS.tobytes()), ("text", "BYTES", (1, 1), b"\x01\0\0\0a")),
    ),
    ("/v2/models/open/infer", *binary(("x", "FP32", (1, 2), RAW[:8]), ("z", "FP32", (1, 2), RAW[:8]))),
    ("/v1/models/score:explain", orjson.dumps({"instances": [dict.fromkeys(handmade.FEATURES, 1.0)]}), 0),
]


# --- the gateway --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FuzzedGateway:
    http: str
    grpc: str
    process: psutil.Process

    def check_sound(self) -> None:
        """It lives, and still answers as it should."""
        with clients.sync_client("grpc", self.grpc) as client:
            input_tensors = clients.tensors(clients.SYNC["grpc"], {"x": ROW[None]}, None)
            y = client.infer("score", **input_tensors).as_numpy("y")
        np.testing.assert_allclose(y, handmade.predict(ROW[None]), rtol=1e-6)


@pytest.fixture(scope="module")
def gateway(repository: Path) -> Iterator[FuzzedGateway]:
    with serve("--port", "0", "--repository", str(repository)) as child:
        url, lines = ready_line(child)
        yield FuzzedGateway(url.removeprefix("http://"), grpc_address(lines), psutil.Process(child.pid))


@dataclass
class Growth:
    """Memory from the first look to the last; a first part of the work brings it to its working size."""

    process: psutil.Process
    start: int = 0

    def looked(self, sent: int, of: int) -> None:
        if sent == of // 4:
            self.start = self.process.memory_info().rss
        if sent == of - 1:
            grown = self.process.memory_info().rss - self.start
            assert grown < GROWTH, f"{grown / MEBIBYTE:.0f} MiB more after {of} messages"


@pytest.mark.full
def test_mangled_grpc(gateway: FuzzedGateway) -> None:
    fuzz_grpc(gateway, 1500, seed=1)


@pytest.mark.full
def test_mangled_streams(gateway: FuzzedGateway) -> None:
    fuzz_stream(gateway, 1000, seed=2)


@pytest.mark.full
def test_mangled_http(gateway: FuzzedGateway) -> None:
    fuzz_http(gateway, 1500, seed=3)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4, 8))
def test_mangled_at_length(gateway: FuzzedGateway, seed: int) -> None:
    fuzz_grpc(gateway, 30_000, seed)
    fuzz_stream(gateway, 30_000, seed)
    fuzz_http(gateway, 30_000, seed)


def fuzz_grpc(gateway: FuzzedGateway, count: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    growth = Growth(gateway.process)
    seen = set()
    with grpc.insecure_channel(gateway.grpc) as channel:
        call = channel.unary_unary(METHOD + "ModelInfer")
        other_methods = [channel.unary_unary(METHOD + name) for name in ("ModelMetadata", "RepositoryIndex")]
        for result in range(count):
            body = mangled(draw, GRPC_SAMPLES[draw.integers(len(GRPC_SAMPLES))])
            ask = call if draw.integers(10) else other_methods[draw.integers(2)]
            code = code_of(ask, body)
            assert code in GRPC_CODES, (body, code)
            seen.add(code)
            growth.looked(result, count)
    assert {"OK", "INVALID_ARGUMENT", "NOT_FOUND"} <= seen
    gateway.check_sound()


def code_of(call: grpc.UnaryUnaryMultiCallable, body: bytes) -> str:
    try:
        call(body, timeout=TIMEOUT_S)
    except grpc.RpcError as error:
        return error.code().name
    return "OK"


def fuzz_stream(gateway: FuzzedGateway, count: int, seed: int) -> None:
    """One stream takes them all, and answers each."""
    draw = np.random.default_rng(seed)
    growth = Growth(gateway.process)
    bodies = (mangled(draw, GRPC_SAMPLES[draw.integers(len(GRPC_SAMPLES))]) for _ in range(count))
    with grpc.insecure_channel(gateway.grpc) as channel:
        answers = channel.stream_stream(METHOD + "ModelStreamInfer")(bodies, timeout=600)
        result = -1
        for result, body in enumerate(answers):
            answer = pb.ModelStreamInferResponse.FromString(body)
            assert "unexpected" not in answer.error_message
            assert answer.error_message or answer.infer_response.outputs
            growth.looked(result, count)
    assert result == count - 1
    gateway.check_sound()


def fuzz_http(gateway: FuzzedGateway, count: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    growth = Growth(gateway.process)
    seen = set()
    connection = http.client.HTTPConnection(gateway.http, timeout=TIMEOUT_S)
    for result in range(count):
        path, body, head = HTTP_SAMPLES[draw.integers(len(HTTP_SAMPLES))]
        sent = mangled(draw, body)
        if head and draw.integers(2):  # the JSON whole, the tensors mangled
            sent = body[:head] + mangled(draw, body[head:])
        headers = {"Content-Type": "application/octet-stream" if head else "application/json"}
        if head:
            headers["Inference-Header-Content-Length"] = str(
                head + int(draw.integers(-2, 3)) * int(draw.integers(2))
            )
        connection.request("POST", path, sent, headers)
        answer = connection.getresponse()
        received = answer.read()
        assert answer.status in HTTP_CODES, (path, sent, received)
        if answer.status != 200:
            assert answer.headers["content-type"] == "application/problem+json", received
        seen.add(answer.status)
        growth.looked(result, count)
    connection.close()
    assert {200, 400, 422} <= seen
    gateway.check_sound()
