"""Every way to be wrong over gRPC, and what is answered."""

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb

from rationale_service.errors import ServiceError
from rationale_service.protocols.grpc.status import refusal_of
from tests.service import handmade
from tests.service.messages import GOOD, RAW, ROW, request, tensor

METHOD = "/inference.GRPCInferenceService/"
TIMEOUT_S = 60


def refused(call: Callable[[], Any], code: str, message: str) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    assert (caught.value.code().name, message in caught.value.details()) == (code, True), caught.value
    return caught.value


MALFORMED = [
    (request("score", GOOD, raw_input_contents=[RAW]), "both contents and raw_input_contents"),
    (request("score", raw_input_contents=[RAW, RAW]), "2 raw_input_contents for 1 inputs"),
    (
        request("score", GOOD, parameters={"timeout": pb.InferParameter(string_param="soon")}),
        "parameters.timeout must be a number of microseconds",
    ),
    (
        request("score", GOOD, parameters={"timeout": pb.InferParameter(int64_param=-1)}),
        "parameters.timeout",
    ),
]
INVALID = [  # what JSON's codec checks alike stands in tests/service/api/routes/test_errors.py
    (pb.ModelInferRequest(model_name="score"), "missing input 'x'"),
    (request(), "has 0 values, but its shape [1, 4] holds 4"),
    (request("score", tensor(shape=(-1, 4), fp32_contents=ROW)), "negative size"),
    (request("score", tensor(datatype="FP16")), "FP16 cannot have typed contents: send raw_input_contents"),
    (request("score", tensor(int_contents=[1, 2, 3, 4])), "takes fp32_contents, not int_contents"),
    (request("score", tensor(datatype="INT8", int_contents=[1, 2, 3, 128])), "128 is outside the range"),
    (request("typed", tensor("text", "BYTES", (2, 1), bytes_contents=[b"a"])), "has 1 values"),
    (request("score", raw_input_contents=[RAW[:5]]), "has 5 bytes, but FP32 of shape [1, 4] takes 16"),
    (request("log", tensor(shape=(1, 1), fp32_contents=[-1])), "gives nan for output 'y'"),
    (request("table", tensor("ids", "INT64", (1, 1), int64_contents=[3])), "cannot compute these values"),
    (
        request(
            "score",
            GOOD,
            outputs=[
                pb.ModelInferRequest.InferRequestedOutputTensor(
                    name="y", parameters={"classification": pb.InferParameter(int64_param=2)}
                )
            ],
        ),
        "classification extension is not supported",
    ),
    (
        request(
            "score",
            pb.ModelInferRequest.InferInputTensor(
                name="x",
                datatype="FP32",
                shape=(1, 4),
                parameters={"shared_memory_region": pb.InferParameter(string_param="r")},
            ),
        ),
        "shared memory is not supported",
    ),
]


@pytest.mark.parametrize(("message", "detail"), MALFORMED)
def test_malformed_requests(stub: Any, message: pb.ModelInferRequest, detail: str) -> None:
    error = refused(lambda: stub.ModelInfer(message), "INVALID_ARGUMENT", detail)
    assert dict(error.trailing_metadata())["problem"] == "malformed-request"


@pytest.mark.parametrize(("message", "detail"), INVALID)
def test_invalid_inputs(stub: Any, message: pb.ModelInferRequest, detail: str) -> None:
    error = refused(lambda: stub.ModelInfer(message), "INVALID_ARGUMENT", detail)
    assert dict(error.trailing_metadata())["problem"] in ("invalid-input", "not-finite")
    assert "ONNXRuntime" not in error.details()


@pytest.mark.parametrize(
    ("message", "detail"),
    [
        (request("absent", GOOD), "no model 'absent' here; there are: 'image',"),
        (request("score", GOOD, model_version="2"), "no version '2'; version 1 is served"),
        (request("../score", GOOD), "no model '../score'"),
    ],
)
def test_unknown_models(stub: Any, message: pb.ModelInferRequest, detail: str) -> None:
    name, version = message.model_name, message.model_version
    for call in (
        lambda: stub.ModelInfer(message),
        lambda: stub.ModelMetadata(pb.ModelMetadataRequest(name=name, version=version)),
        lambda: stub.ModelConfig(pb.ModelConfigRequest(name=name, version=version)),
    ):
        error = refused(call, "NOT_FOUND", detail)
        assert dict(error.trailing_metadata())["problem"] == "unknown-model"


def test_a_model_that_fails(stub: Any) -> None:
    message = request("mixing", tensor(shape=(2, 1), fp32_contents=[1, -1]))
    refused(lambda: stub.ModelInfer(message), "INTERNAL", "mixes the rows of a batch")


@pytest.mark.parametrize(
    ("call", "message", "detail"),
    [
        ("RepositoryModelLoad", pb.RepositoryModelLoadRequest(), "PUT /v2/models/{model}/explainers/{name}"),
        ("RepositoryModelUnload", pb.RepositoryModelUnloadRequest(), "an operator loads and unloads by HTTP"),
        (
            "SystemSharedMemoryStatus",
            pb.SystemSharedMemoryStatusRequest(),
            "raw_input_contents",
        ),
        ("CudaSharedMemoryRegister", pb.CudaSharedMemoryRegisterRequest(), "shared memory is not supported"),
        ("TraceSetting", pb.TraceSettingRequest(), "an operator's setting"),
        ("LogSettings", pb.LogSettingsRequest(), "RATIONALE_LOG_LEVEL"),
    ],
)
def test_what_a_gateway_must_not_offer(stub: Any, call: str, message: Any, detail: str) -> None:
    error = refused(lambda: getattr(stub, call)(message), "UNIMPLEMENTED", detail)
    assert dict(error.trailing_metadata())["problem"] == "not-offered"


@pytest.mark.parametrize("path", ["/inference.GRPCInferenceService/Absent", "/other.Service/Do", "/x"])
def test_what_is_not_offered_says_what_is(channel: grpc.Channel, path: str) -> None:
    message = f"{path} is not supported here. /inference.GRPCInferenceService offers ServerLive, ServerReady,"
    refused(lambda: channel.unary_unary(path)(b""), "UNIMPLEMENTED", message)


def test_a_silent_stream_of_an_unknown_kind_is_answered(channel: grpc.Channel) -> None:
    said_enough = threading.Event()

    def nothing() -> Iterator[bytes]:
        said_enough.wait(TIMEOUT_S)
        yield from ()

    answers = channel.stream_stream("/other.Service/Stream")(nothing(), timeout=TIMEOUT_S)
    refused(lambda: list(answers), "UNIMPLEMENTED", "is not supported here")
    said_enough.set()


# --- garbage ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [b"\xff\xff\xff", b"\x0a\x05sco", b"\x0a\x02\xff\xfe"])
def test_a_body_that_is_no_message(channel: grpc.Channel, body: bytes) -> None:
    infer = channel.unary_unary(METHOD + "ModelInfer")
    refused(lambda: infer(body), "INVALID_ARGUMENT", "the message is not what")


def test_a_refusal_fits_what_clients_take(stub: Any) -> None:
    """Names come back in refusals, and their bytes may triple on the way."""
    names = [f"{i}" + "😀" * 100 for i in range(200)]
    message = request("score", *(tensor(name, fp32_contents=ROW) for name in names))
    error = refused(lambda: stub.ModelInfer(message), "INVALID_ARGUMENT", "unknown input '0😀")
    assert len(error.details().encode()) <= 2000


def test_mutated_messages(channel: grpc.Channel, stub: Any) -> None:
    """Whatever the bytes are, the answer is one of values or of the caller's mistake."""
    draw = np.random.default_rng(11)
    sound = request("score", raw_input_contents=[RAW], id="7").SerializeToString()
    infer = channel.unary_unary(METHOD + "ModelInfer")
    seen = set()
    for _ in range(400):
        body = bytearray(sound)
        for _ in range(draw.integers(1, 5)):
            body[draw.integers(len(body))] = draw.integers(256)
        try:
            pb.ModelInferResponse.FromString(infer(bytes(body[: draw.integers(1, len(body) + 1)])))
            seen.add("OK")
        except grpc.RpcError as error:
            seen.add(error.code().name)
    assert seen <= {"OK", "INVALID_ARGUMENT", "NOT_FOUND"}
    assert {"INVALID_ARGUMENT", "NOT_FOUND"} <= seen
    answer = stub.ModelInfer(request("score", GOOD))
    np.testing.assert_allclose(
        np.frombuffer(answer.raw_output_contents[0], np.float32), handmade.predict(ROW), rtol=1e-6
    )


def test_what_is_not_grpc_disturbs_nobody(grpc_address: str, stub: Any) -> None:
    host, port = grpc_address.split(":")
    for message in (b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 1000, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff"):
        with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as connection:
            connection.sendall(message)
    assert stub.ServerReady(pb.ServerReadyRequest(), timeout=TIMEOUT_S).ready


@pytest.mark.parametrize("letter", ["a", "ü", "語", "😀"])
def test_a_long_text_is_cut_by_bytes_between_letters(letter: str) -> None:
    """Clients take 8 KiB of metadata, in which a byte may become three."""
    text = refusal_of(ServiceError(letter * 3000), "Method").text
    size = len(letter.encode())
    assert 2000 - size < len(text.encode()) <= 2000
    assert set(text.rpartition(": ")[2]) == {letter}
