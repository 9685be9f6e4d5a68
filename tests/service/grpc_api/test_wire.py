"""Messages of gRPC: what is counted before they are parsed."""

import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from rationale_service.engine.large_requests import SMALL
from rationale_service.errors import TooLargeError
from rationale_service.protocols.grpc.wire import check_message

MOST_JSON = 4 * SMALL
RAW, INPUT, PARAMETER = b"\x3a", b"\x2a", b"\x22"  # tags of fields of ModelInferRequest


def message(typed: int = 0, raw: int = 0, inputs: int = 1) -> bytes:
    message_ = pb.ModelInferRequest(model_name="m", id="7", raw_input_contents=[bytes(raw)] if raw else [])
    for i in range(inputs):
        tensor = message_.inputs.add(name=f"x{i}", datatype="FP32", shape=[1, typed])
        if typed:
            tensor.contents.fp32_contents.extend(np.zeros(typed, np.float32))
    return bytes(message_.SerializeToString())


@pytest.mark.parametrize(
    "body",
    [
        message(),
        message(raw=8 * SMALL),
        message(typed=SMALL // 8 + 1),
        message(raw=SMALL, inputs=20_000),
        RAW + b"\0" + message(raw=2 * SMALL),
        (INPUT + b"\0") * (SMALL // 2),  # of 1 MiB
    ],
)
def test_what_may_be(body: bytes) -> None:
    check_message(body, MOST_JSON)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (message(typed=SMALL), "more than 1048576 bytes outside raw_input_contents: send tensors in these"),
        (message(raw=SMALL, inputs=30_000), "more than 30000 fields"),
        ((INPUT + b"\0") * SMALL, "more than 30000 fields"),
        ((RAW + b"\0") * SMALL, "more than 30000 fields"),
        (b"\xf8\x01\x00" * SMALL, "more than 30000 fields"),  # a field of numbers that nobody knows
    ],
)
def test_what_may_not_be(body: bytes, message: str) -> None:
    with pytest.raises(TooLargeError, match=message):
        check_message(body, MOST_JSON)


@pytest.mark.parametrize(
    "start", [b"\xff" * 20, b"\x2a", b"\x2b", b"\x2a\xff\xff\xff\xff\x7f", b"\x29", b"\x2d\0"]
)
def test_what_is_no_message_is_left_to_its_parser(start: bytes) -> None:
    check_message(start.ljust(SMALL + 1, b"\xff"), MOST_JSON)


@given(st.binary(max_size=200))
def test_any_bytes(start: bytes) -> None:
    """It ends, whatever they are."""
    with contextlib.suppress(TooLargeError):
        check_message(start + bytes(SMALL), MOST_JSON)
