"""Bodies and messages that cost more than their size: each once hurt a gateway of examples/credit."""

import gzip
import io
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

JSON, CSV, NPZ, NPY = (
    {"Content-Type": kind}
    for kind in ("application/json", "text/csv", "application/x-npz", "application/x-npy")
)
ROW = (
    b'{"income":24500,"loan_amount":15000,"term_months":60,"debt_to_income":0.52,"credit_history_years":3.5,'
    b'"late_payments_2y":3,"open_accounts":4,"utilisation":0.91,"recent_inquiries":4,"employment_years":0.8}'
)
INFER, EXPLAIN = "/v2/models/credit/infer", "/v2/models/credit/explain"
PREDICT, REASONS, DECIDE = (f"/v1/models/credit:{verb}" for verb in ("predict", "explain", "decide"))
SET, EXPLAINER = "/v2/reference-sets/r?model=credit", "/v2/models/credit/explainers/e"
LOAD, INDEX = "/v2/repository/models/credit/load", "/v2/repository/index"
TENSOR = b'{"name":"applicant","datatype":"FP32","shape":[1,10],"data":[0,0,0,0,0,0,0,0,0,0]}'


def many(piece: bytes, size: int, before: bytes = b"[", after: bytes = b"]") -> bytes:
    """Return a body of about `size` bytes, filled with copies of `piece`."""
    return before + b",".join([piece] * (size // (len(piece) + 1))) + after


def members(size: int) -> bytes:
    """Return an object of about `size` bytes, whose members have different names."""
    return b"{" + b",".join(b'"%d":0' % i for i in range(size // 10)) + b"}"


def instances(rows: bytes, more: bytes = b"") -> bytes:
    return b'{"instances":' + rows + more + b"}"


def inputs(text: bytes, more: bytes = b"") -> bytes:
    return b'{"inputs":' + text + more + b"}"


def archive() -> bytes:
    """Return an .npz of 64 KB whose array would have 64 MB."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        array = io.BytesIO()
        np.save(array, np.zeros((1_600_000, 10), np.float32))
        file.writestr("applicant.npy", array.getvalue())
    return packed.getvalue()


def claimed() -> bytes:
    """Return an .npy whose header claims 40 TB."""
    array = io.BytesIO()
    np.save(array, np.zeros((3, 10), np.float32))
    return array.getvalue().replace(b"(3, 10), }          ", b"(1000000000000, 10), }")


@dataclass(frozen=True)
class ApiBody:
    """A request body, its path, and the right statuses of the answer."""

    path: str
    make: Callable[[], bytes]
    statuses: tuple[int, ...] = (413,)
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=lambda: JSON)


MB = 1_000_000
BODIES = {
    "a million empty inputs": ApiBody(INFER, lambda: inputs(many(b"{}", 3 * MB))),
    "5 million empty inputs": ApiBody(INFER, lambda: inputs(many(b"{}", 15 * MB))),
    "15 million empty inputs": ApiBody(INFER, lambda: inputs(many(b"{}", 45 * MB))),
    "a million empty outputs": ApiBody(
        EXPLAIN, lambda: inputs(b"[" + TENSOR + b"]", b',"outputs":' + many(b"{}", 3 * MB))
    ),
    "300,000 empty inputs": ApiBody(INFER, lambda: inputs(many(b"{}", MB)), (400,)),
    "a million parameters": ApiBody(
        INFER, lambda: inputs(b"[" + TENSOR + b"]", b',"parameters":' + members(10 * MB))
    ),
    "a million unknown members": ApiBody(INFER, lambda: members(14 * MB), (400, 413)),
    "a shape of a million axes": ApiBody(
        INFER,
        lambda: inputs(
            b'[{"name":"applicant","datatype":"FP32","shape":' + many(b"1", 2 * MB) + b',"data":[1]}]'
        ),
        (422,),
    ),
    "two million numbers too many": ApiBody(
        INFER, lambda: inputs(b"[" + TENSOR[:-2] + b"," + many(b"0.1", 8 * MB, b"") + b"}]"), (422,)
    ),
    "lists in lists": ApiBody(
        INFER, lambda: inputs(b"[" + TENSOR[:-22] + many(b"[0.1]", 3 * MB) + b"}]"), (422,)
    ),
    "deep lists": ApiBody(INFER, lambda: b"[" * (15 * MB), (413,)),
    "JSON that ends early": ApiBody(PREDICT, lambda: instances(many(ROW, 15 * MB, after=b"")), (400,)),
    "a million empty instances": ApiBody(PREDICT, lambda: instances(many(b"{}", 3 * MB))),
    "300,000 empty instances": ApiBody(REASONS, lambda: instances(many(b"{}", MB))),
    "instances that are numbers": ApiBody(PREDICT, lambda: instances(many(b"1", 3 * MB))),
    "an instance of a million features": ApiBody(PREDICT, lambda: instances(b"[" + members(14 * MB) + b"]")),
    "4 million features": ApiBody(REASONS, lambda: instances(b"[" + members(45 * MB) + b"]")),
    "a feature given a million times": ApiBody(
        REASONS, lambda: instances(b"[" + many(b'"income":1', 11 * MB, b"{", b"}") + b"]")
    ),
    "a feature of two million numbers": ApiBody(
        REASONS, lambda: instances(b'[{"income":' + many(b"0.1", 7 * MB) + b"}]"), (422,)
    ),
    "45 MB of instances": ApiBody(PREDICT, lambda: instances(many(ROW, 45 * MB))),
    "16 MB of instances, predicted": ApiBody(PREDICT, lambda: instances(many(ROW, 16 * MB)), (200,)),
    "16 MB of instances, explained": ApiBody(REASONS, lambda: instances(many(ROW, 16 * MB)), (200, 504)),
    "16 MB of instances, within 60 ms": ApiBody(
        PREDICT,
        lambda: instances(many(ROW, 16 * MB)),
        (408, 504),
        headers={**JSON, "x-request-timeout-ms": "60"},
    ),
    "16 MB of references": ApiBody(
        REASONS, lambda: instances(b"[" + ROW + b"]", b',"references":' + many(ROW, 16 * MB)), (422,)
    ),
    "decisions on 16 MB": ApiBody(DECIDE, lambda: instances(many(ROW, 16 * MB))),
    "decisions on 9,000 applicants": ApiBody(DECIDE, lambda: instances(many(ROW, 9000 * 200)), (200, 504)),
    "decisions on a million features": ApiBody(DECIDE, lambda: instances(b"[" + members(14 * MB) + b"]")),
    "an explainer of a million options": ApiBody(EXPLAINER, lambda: members(MB), (422,), "PUT"),
    "an explainer of many groups": ApiBody(
        EXPLAINER, lambda: b'{"groups":' + members(MB - 100) + b"}", (422,), "PUT"
    ),
    "an explainer of wrong names": ApiBody(
        EXPLAINER, lambda: b'{"features":' + many(b"1", MB - 100) + b"}", (422,), "PUT"
    ),
    "an explainer of 64 MB": ApiBody(EXPLAINER, lambda: members(64 * MB), (413,), "PUT"),
    "references: empty rows": ApiBody(SET, lambda: many(b"{}", 2 * MB), (413,), "PUT"),
    "references: 2 MB of rows": ApiBody(SET, lambda: many(ROW, 2 * MB), (201, 200), "PUT"),
    "references: commas": ApiBody(SET, lambda: b"," * (60 * MB), (413, 422), "PUT", CSV),
    "references: short lines": ApiBody(SET, lambda: b"1\n" * (30 * MB), (413, 422), "PUT", CSV),
    "references: a packed array": ApiBody(SET, archive, (200, 201), "PUT", NPZ),
    "references: an array of 40 TB": ApiBody(SET, claimed, (413, 422), "PUT", NPY),
    "an index of a million": ApiBody(INDEX, lambda: members(14 * MB)),
    "a load of many parameters": ApiBody(LOAD, lambda: b'{"parameters":' + members(MB - 100) + b"}", (501,)),
    "gzip of 45 MB": ApiBody(
        PREDICT,
        lambda: gzip.compress(instances(many(ROW, 45 * MB))),
        (413,),
        headers={**JSON, "Content-Encoding": "gzip"},
    ),
}  # fmt: skip


def _number(value: int) -> bytes:
    """Return a number as a protobuf varint."""
    low, high = value & 127, value >> 7
    return bytes([low | 128]) + _number(high) if high else bytes([low])


def field_of(number: int, content: bytes) -> bytes:
    return _number(number << 3 | 2) + _number(len(content)) + content


_NAMED = field_of(1, b"credit")  # model_name
# Fields of ModelInferRequest: 4 parameters, 5 inputs (with 3 shape, 5 contents), 6 outputs, 7 raw tensors.
MESSAGES: dict[str, Callable[[], bytes]] = {
    "empty inputs": lambda: _NAMED + field_of(5, b"") * (8 * MB),
    "empty outputs": lambda: _NAMED + field_of(6, b"") * (8 * MB),
    "empty parameters": lambda: _NAMED + field_of(4, b"") * (8 * MB),
    "empty raw tensors": lambda: _NAMED + field_of(7, b"") * (8 * MB),
    "empty texts": lambda: _NAMED + field_of(5, field_of(5, field_of(8, b"") * (7 * MB))),
    "a shape of 15 million axes": lambda: _NAMED + field_of(5, field_of(3, b"\1" * (15 * MB))),
    "15 million typed values": lambda: _NAMED + field_of(5, field_of(5, field_of(3, b"\1" * (15 * MB)))),
    "4 million typed values": lambda: _NAMED + field_of(5, field_of(5, field_of(3, b"\1" * (4 * MB)))),
    "64 MB of raw tensors": lambda: _NAMED + field_of(7, bytes(64 * MB)),
    "100,000 inputs": lambda: _NAMED + field_of(5, field_of(1, b"x")) * 100_000,
}
