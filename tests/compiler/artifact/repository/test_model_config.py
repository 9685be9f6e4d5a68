"""The declared part of Triton's model_config.proto is tritonclient's."""

import subprocess
import sys
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from rationale.artifact.repository.model_config import DATA_TYPES, ModelConfig


def messages(descriptor: Any) -> dict[str, Any]:
    """The message, and those in its fields, by name."""
    descriptors = {descriptor.name: descriptor}
    for field in descriptor.fields:
        if field.message_type and field.message_type.name not in descriptors:
            descriptors |= messages(field.message_type)
    return descriptors


OURS = messages(ModelConfig.DESCRIPTOR)
THEIRS = {
    "Input": pb.ModelWarmup.Input.DESCRIPTOR,
    "InputsEntry": pb.ModelWarmup.InputsEntry.DESCRIPTOR,
} | dict(pb.DESCRIPTOR.message_types_by_name)


def declared(field: Any) -> tuple[Any, ...]:
    type_name = (field.message_type or field.enum_type or field).name
    return field.number, field.name, field.type, field.is_repeated, type_name


@pytest.mark.parametrize("name", OURS)
def test_a_field_is_the_one_of_triton(name: str) -> None:
    theirs = THEIRS[name].fields_by_name
    assert [declared(field) for field in OURS[name].fields] == [
        declared(theirs[field.name]) for field in OURS[name].fields
    ]


def test_data_types_have_the_numbers_of_triton() -> None:
    assert list(pb.DataType.items()) == [(name, number) for number, name in enumerate(DATA_TYPES)]
    assert pb.ModelInstanceGroup().kind == pb.ModelInstanceGroup.KIND_AUTO  # which is not declared


def test_text_is_that_of_the_whole_schema() -> None:
    """Warm-up inputs are a map there, whose text is sorted by name."""
    config = ModelConfig(name="a", backend="onnxruntime", max_batch_size=64)
    config.input.add(name="x", data_type=DATA_TYPES.index("TYPE_STRING"), dims=(1,)).reshape.SetInParent()
    config.dynamic_batching.default_queue_policy.allow_timeout_override = True
    config.instance_group.add(count=1)
    warmup = config.model_warmup.add(name="batch of 1", batch_size=1, count=1)
    for name in "ab":
        warmup.inputs.add(key=name).value.dims.extend((2, 3))
    text = text_format.MessageToString(config)
    assert text_format.MessageToString(text_format.Parse(text, pb.ModelConfig())) == text


def test_entries_are_written_without_grpc() -> None:
    code = "import sys, rationale.artifact.repository.write; print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert {"grpc", "tritonclient"}.isdisjoint(result.stdout.split())
