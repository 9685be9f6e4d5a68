"""The part of Triton's model_config.proto that entries need.

tritonclient has all of it but needs gRPC, which a compile does not. A test compares the two.
"""

from collections.abc import Iterator
from typing import Any

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    EnumValueDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)

# Names by number.
_NAMES = "INVALID BOOL UINT8 UINT16 UINT32 UINT64 INT8 INT16 INT32 INT64 FP16 FP32 FP64 STRING BF16"
DATA_TYPES = tuple(f"TYPE_{name}" for name in _NAMES.split())
# For each message its fields: number, name and type, which ends in [] if the field is repeated.
MESSAGES = {
    "ModelTensorReshape": "1 shape int64[]",
    "ModelInput": "1 name string, 2 data_type DataType, 4 dims int64[], 5 reshape ModelTensorReshape",
    "ModelOutput": "1 name string, 2 data_type DataType, 3 dims int64[], 5 reshape ModelTensorReshape",
    "ModelQueuePolicy": "3 allow_timeout_override bool, 4 max_queue_size uint32",
    "ModelDynamicBatching": "2 max_queue_delay_microseconds uint64, 6 default_queue_policy ModelQueuePolicy",
    "ModelInstanceGroup": "2 count int32",
    "Input": "1 data_type DataType, 2 dims int64[], 5 input_data_file string",
    "InputsEntry": "1 key string, 2 value Input",
    "ModelWarmup": "1 name string, 2 batch_size uint32, 3 inputs InputsEntry[], 4 count uint32",
    "ModelOperations": "1 op_library_filename string[]",
    "ModelConfig": "1 name string, 4 max_batch_size int32, 5 input ModelInput[], 6 output ModelOutput[], "
    "7 instance_group ModelInstanceGroup[], 11 dynamic_batching ModelDynamicBatching, "
    "16 model_warmup ModelWarmup[], 17 backend string, 18 model_operations ModelOperations",
}
_PACKAGE = "inference"


def _fields(text: str) -> Iterator[FieldDescriptorProto]:
    declared = {"DataType": "ENUM"} | dict.fromkeys(MESSAGES, "MESSAGE")
    for field in text.split(", "):
        number, name, kind = field.split()
        label = "REPEATED" if kind.endswith("[]") else "OPTIONAL"
        kind = kind.removesuffix("[]")
        yield FieldDescriptorProto(
            number=int(number),
            name=name,
            label=FieldDescriptorProto.Label.Value(f"LABEL_{label}"),
            type=FieldDescriptorProto.Type.Value(f"TYPE_{declared.get(kind, kind.upper())}"),
            type_name=f".{_PACKAGE}.{kind}" if kind in declared else None,
        )


def _message_class() -> Any:
    """Return the class of ModelConfig, in a pool of its own: tritonclient's is in the default one."""
    pool = descriptor_pool.DescriptorPool()
    values = [EnumValueDescriptorProto(name=name, number=i) for i, name in enumerate(DATA_TYPES)]
    pool.Add(
        FileDescriptorProto(
            name="model_config.proto",
            package=_PACKAGE,
            syntax="proto3",
            enum_type=[EnumDescriptorProto(name="DataType", value=values)],
            message_type=[
                DescriptorProto(name=name, field=list(_fields(text))) for name, text in MESSAGES.items()
            ],
        )
    )
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.ModelConfig"))


ModelConfig = _message_class()
