"""Calling the rules: once at the sample x, and once more at the references r.

A `Call` is one operator of the path with what its rule returned at both. The walk reads calls
backwards; methods decide at which point to call a rule again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from compiler.errors import UnsupportedModelError
from compiler.graph.ops import Ops
from compiler.graph.tensor import Tensor
from compiler.rules.rule import Rule


@dataclass(frozen=True)
class At:
    """A rule's result at one point: its inputs, its outputs, and one pullback for each input."""

    inputs: tuple[Tensor | None, ...]
    outputs: tuple[Tensor, ...]
    pullbacks: tuple[Callable[[Any], Tensor] | None, ...]

    @property
    def y(self) -> Tensor:
        return self.outputs[0]


@dataclass(frozen=True)
class Call:
    """One operator on the path from the explained inputs to the explained output.

    Attributes:
        varying: per input, whether it depends on the explained inputs. One that does not (a weight, an
            input that is not explained) is its own reference.
        r: None for methods without references.
    """

    name: str
    rule: Rule
    attributes: Mapping[str, Any]
    inputs: tuple[str | None, ...]
    outputs: tuple[str, ...]
    varying: tuple[bool, ...]
    x: At
    r: At | None = field(default=None)

    @property
    def sources(self) -> list[str]:
        """Names of the inputs that vary, one by one."""
        return [n for n, varying in zip(self.inputs, self.varying, strict=True) if varying and n is not None]

    def at(self, op: Ops, inputs: Sequence[Tensor | None]) -> At:
        """Call the rule at another point."""
        return evaluate(op, self.rule, inputs, self.attributes, self.name)

    @property
    def reference(self) -> At:
        assert self.r is not None, "the method has no references"
        return self.r


def attributes_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes as Python values.

    ONNX stores float attributes in float32: what a rule computes with must be that number.
    """
    return {k: float(np.float32(v)) if isinstance(v, float) else v for k, v in values.items()}


def evaluate(
    op: Ops, rule: Rule, inputs: Sequence[Tensor | None], attributes: Mapping[str, Any], name: str
) -> At:
    """Call a rule.

    Raises:
        UnsupportedModelError: the operator is used in a way its rule does not cover; names the node.
    """
    try:
        y, pullbacks = rule(op, *inputs, **attributes)
    except UnsupportedModelError as error:
        raise UnsupportedModelError(f"{rule.op_type} node {name!r}: {error}") from error
    except TypeError as error:
        if "argument" not in str(error):
            raise
        raise UnsupportedModelError(
            f"{rule.op_type} node {name!r}: used with inputs or attributes its rule does not take ({error})"
        ) from error
    outputs = y if isinstance(y, tuple) else (y,)
    given = pullbacks if isinstance(pullbacks, tuple) else (pullbacks,)
    padded = (*given, *(None for _ in inputs[len(given) :]))
    return At(tuple(inputs), outputs, padded[: len(inputs)])
