"""Requests of the Open Inference Protocol, in each of its three forms, and checks of their answers."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from tritonclient.grpc import service_pb2
from tritonclient.http import InferenceServerClient, InferInput
from tritonclient.utils import np_to_triton_dtype, serialize_byte_tensor, triton_to_np_dtype

Arrays = dict[str, np.ndarray]
PREDICT, EXPLAIN = "predict", "explain"
ROUTES = {PREDICT: "infer", EXPLAIN: "explain"}
SUFFIX = "_explain"  # of the entry that explains a model
HEADER_LENGTH = "Inference-Header-Content-Length"
OPEN_LENGTH = 8  # of an axis that may have any length, but for the first, which counts rows


class WrongAnswerError(Exception):
    """A wrong answer, whatever its status; the message says why."""


@dataclass(frozen=True)
class ModelTensor:
    """A tensor as a model's metadata describe it; -1 in `shape` is any length."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    def drawn(self, rows: int) -> np.ndarray:
        """Return random normal values; for integers or texts, 0 and 1, which most vocabularies have."""
        dtype = np.dtype(triton_to_np_dtype(self.datatype))
        sizes = [rows if i == 0 and n < 0 else OPEN_LENGTH if n < 0 else n for i, n in enumerate(self.shape)]
        if dtype.kind == "f":
            return np.random.default_rng().normal(size=sizes).astype(dtype)
        bits = np.random.default_rng().integers(0, 2, size=sizes)
        return bits.astype(bytes).astype(object) if dtype.kind == "O" else bits.astype(dtype)

    def check(self, array: np.ndarray | None, rows: int) -> None:
        """Check a tensor of an answer. Raises WrongAnswerError."""
        if array is None:
            raise WrongAnswerError(f"{self.name} is missing")
        shape = [rows if i == 0 and n < 0 else n for i, n in enumerate(self.shape)]
        if len(shape) != array.ndim or any(
            n not in (-1, got) for n, got in zip(shape, array.shape, strict=True)
        ):
            raise WrongAnswerError(f"{self.name} has another shape")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise WrongAnswerError(f"{self.name} is not finite")


@dataclass(frozen=True)
class Question:
    """A request that is built once and sent often.

    Attributes:
        label: name in locust's statistics. path: HTTP path; entry: model name for gRPC.
        outputs: required tensors of the answer to `inputs`.
    """

    label: str
    path: str
    entry: str
    inputs: Arrays
    outputs: tuple[ModelTensor, ...] = ()

    @property
    def rows(self) -> int:
        return len(next(iter(self.inputs.values())))

    @functools.cached_property
    def as_json(self) -> tuple[Any, dict[str, str]]:
        """Body and headers."""
        tensors = [
            {"name": name, "datatype": np_to_triton_dtype(x.dtype), "shape": x.shape, "data": _flat(x)}
            for name, x in self.inputs.items()
        ]
        body = orjson.dumps({"inputs": tensors}, option=orjson.OPT_SERIALIZE_NUMPY)
        return body, {"Content-Type": "application/json"}

    @functools.cached_property
    def as_binary(self) -> tuple[Any, dict[str, str]]:
        """Body and headers."""
        tensors = [
            InferInput(name, x.shape, np_to_triton_dtype(x.dtype)).set_data_from_numpy(x)
            for name, x in self.inputs.items()
        ]
        body, head_size = InferenceServerClient.generate_request_body(tensors)
        return body, {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(head_size)}

    @functools.cached_property
    def as_message(self) -> Any:
        """The request of gRPC's ModelInfer."""
        message = service_pb2.ModelInferRequest(model_name=self.entry)
        for name, x in self.inputs.items():
            message.inputs.add(name=name, datatype=np_to_triton_dtype(x.dtype), shape=x.shape)
            data = serialize_byte_tensor(x).item() if x.dtype.kind == "O" else x.tobytes()
            message.raw_input_contents.append(data)
        return message

    def check(self, output: Callable[[str], np.ndarray | None]) -> None:
        """Check an answer; `output` returns its tensor of a name. Raises WrongAnswerError."""
        for tensor in self.outputs:
            tensor.check(output(tensor.name), self.rows)


def _flat(x: np.ndarray) -> Any:
    return x.astype(str).ravel().tolist() if x.dtype.kind == "O" else np.ascontiguousarray(x).ravel()
