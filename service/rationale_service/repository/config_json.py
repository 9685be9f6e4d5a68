"""An entry's `config.pbtxt` in Triton's JSON form."""

from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message


def as_json(message: Message) -> dict[str, Any]:
    """Return the set fields by their own names: enums as names, 64-bit numbers as numbers.

    protobuf's own JSON writes those numbers as strings; Triton and its clients do not.
    """
    return {field.name: _value(field, value) for field, value in message.ListFields()}


def _value(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        of = field.message_type.fields_by_name["value"]
        return {str(key): _single(of, value[key]) for key in sorted(value)}
    return [_single(field, each) for each in value] if field.is_repeated else _single(field, value)


def _single(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is not None:
        return as_json(value)
    if field.enum_type is not None:
        return field.enum_type.values_by_number[value].name
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
