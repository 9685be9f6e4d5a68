"""What is any JSON to Python and a known shape to readers of the OpenAPI document and generators of clients.

Nothing is checked by these: what is read is checked where it is decoded.
"""

from typing import Annotated, Any

from pydantic import WithJsonSchema

_SCALARS = [{"type": "number"}, {"type": "boolean"}, {"type": "string"}]
_NESTED = {"type": "array", "items": {"anyOf": [*_SCALARS, {"type": "array", "items": {}}]}}


def _object(of: list[dict[str, Any]], **known: str) -> WithJsonSchema:
    """An object with members of these kinds; some with a JSON type of their own."""
    properties = {name: {"type": kind} for name, kind in known.items()}
    return WithJsonSchema(
        {"type": "object", "properties": properties, "additionalProperties": {"anyOf": of}}
        if known
        else {"type": "object", "additionalProperties": {"anyOf": of}}
    )


Nested = Annotated[Any, WithJsonSchema(_NESTED)]
Parameters = Annotated[dict[str, Any], _object(_SCALARS)]
InputParameters = Annotated[dict[str, Any], _object(_SCALARS, binary_data_size="integer")]
OutputParameters = Annotated[dict[str, Any], _object(_SCALARS, binary_data="boolean")]
RequestParameters = Annotated[
    dict[str, Any],
    _object(
        _SCALARS, binary_data_output="boolean", timeout="integer", explainer="string", reference_set="string"
    ),
]
ByFeature = Annotated[dict[str, Any], _object([{"type": "number"}, _NESTED])]
# A row of an input or output: its value or values, or those of several by name.
Row = Annotated[
    Any,
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "object", "additionalProperties": {"anyOf": [*_SCALARS, _NESTED]}},
                _NESTED,
                *_SCALARS,
            ]
        }
    ),
]
