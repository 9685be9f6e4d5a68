"""ONNX operators in converters of skl2onnx."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from skl2onnx.algebra import onnx_ops

Convert = Callable[[Any, Any, Any], None]  # of a scope, an operator and a container


def add_node(
    scope: Any, container: Any, op: str, inputs: Sequence[str], output: str, **attributes: Any
) -> str:
    """Add a node under a new name; return its output."""
    container.add_node(op, list(inputs), [output], name=scope.get_unique_operator_name(op), **attributes)
    return output


class Ops:
    """ONNX operators in the opset of a conversion: `ops.Add(a, b)`.

    Args:
        container: skl2onnx's container of the converted nodes.
    """

    def __init__(self, container: Any) -> None:
        self._opset = container.target_opset

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return functools.partial(getattr(onnx_ops, f"Onnx{name}"), op_version=self._opset)
