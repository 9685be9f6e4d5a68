"""Messages of `GRPCInferenceService`, made by hand: what tritonclient would not send, too."""

from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2 as pb
from tritonclient.utils import np_to_triton_dtype

# The typed contents of a datatype; FP16 has none.
CONTENTS = {"FP32": "fp32_contents", "INT64": "int64_contents", "BYTES": "bytes_contents"}


def request(model: str = "score", *tensors: Any, **over: Any) -> pb.ModelInferRequest:
    return pb.ModelInferRequest(model_name=model, inputs=tensors or [tensor()], **over)


def tensor(
    name: str = "x", datatype: str = "FP32", shape: tuple[int, ...] = (1, 4), **contents: Any
) -> pb.ModelInferRequest.InferInputTensor:
    typed = pb.InferTensorContents(**contents) if contents else None
    kind = pb.ModelInferRequest.InferInputTensor
    return kind(name=name, datatype=datatype, shape=shape, contents=typed)


def typed(name: str, array: np.ndarray) -> pb.ModelInferRequest.InferInputTensor:
    datatype = np_to_triton_dtype(array.dtype)
    return tensor(name, datatype, array.shape, **{CONTENTS[datatype]: array.ravel().tolist()})


ROW = np.array([1, 2, 3, 4], np.float32)
RAW = ROW.tobytes()
GOOD = tensor(fp32_contents=ROW.tolist())
