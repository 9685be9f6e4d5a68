"""Messages to and from Triton, without one: what the gateway's own gRPC end reads must be what is sent."""

from pathlib import Path

import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb

from service.backends.triton_messages import from_answer, to_request
from service.errors import ModelFailedError
from service.grpc_api.codec import decode_request, encode_answer
from service.inference.dataplane import Answer
from service.repository.entry import Entry
from service.repository.registry import read_repository

TENSORS = {
    "ids_out": np.array([[1, -2], [3, 4], [5, 6]]),
    "text_out": np.array([[b"a"], [b""], ["é".encode()]], dtype=np.object_),
    "half": np.array([[1, 2], [3, 4], [5, 6]], np.float16),
    "positive": np.array([[True, False], [False, False], [True, True]]),
}


@pytest.fixture
def entry(repository: Path) -> Entry:
    return read_repository(repository).entry("typed")


def raw(**over: object) -> bytes:
    """An answer of one output, well-formed but for what `over` says."""
    tensor = {"name": "half", "datatype": "FP16", "shape": [1, 2], **over}
    data = tensor.pop("data", bytes(4))
    outputs = [pb.ModelInferResponse.InferOutputTensor(**tensor)]
    return pb.ModelInferResponse(outputs=outputs, raw_output_contents=[data]).SerializeToString()


def test_a_request_says_all_that_was_asked(entry: Entry) -> None:
    message = pb.ModelInferRequest.FromString(to_request(entry, TENSORS, ["half", "small"], 0.25))
    assert (message.model_name, message.model_version) == ("typed", entry.version)
    asked = decode_request(message)
    assert (asked.outputs, asked.timeout_s) == (("half", "small"), 0.25)
    for name, array in TENSORS.items():
        assert asked.inputs[name].dtype == array.dtype
        np.testing.assert_array_equal(asked.inputs[name], array)
    assert not pb.ModelInferRequest.FromString(to_request(entry, TENSORS, ["half"], None)).parameters


def test_an_answer_gives_the_outputs_asked_for(entry: Entry) -> None:
    body = encode_answer("typed", "1", "", Answer(entry, TENSORS)).SerializeToString()
    tensors = from_answer(entry, ["positive", "text_out", "half"], body)
    assert list(tensors) == ["positive", "text_out", "half"]
    for name, array in tensors.items():
        assert array.dtype == TENSORS[name].dtype
        np.testing.assert_array_equal(array, TENSORS[name])


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"\xff\xff", "cannot be read"),
        (raw(name="other"), "did not return output 'half'"),
        (raw(datatype="BF16"), "as BF16"),
        (raw(shape=[3, 2]), "does not fill its shape"),
        (raw(datatype="BYTES", data=b"\xff\0\0\0"), "does not fill its shape"),
        (pb.ModelInferResponse(outputs=[{"name": "half"}]).SerializeToString(), "did not return"),
    ],
)
def test_an_answer_that_is_none_is_a_fault_of_triton(entry: Entry, body: bytes, said: str) -> None:
    with pytest.raises(ModelFailedError, match=said):
        from_answer(entry, ["half"], body)
