"""What the compiler asks of a method."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from compiler.errors import UnsupportedModelError
from compiler.forward import At, Call
from compiler.graph import Ops
from compiler.tensor import Tensor

References = npt.ArrayLike | Mapping[str, npt.ArrayLike]


class Method(Protocol):
    """A method never knows operators: it knows kinds, and where to call their rules."""

    name: ClassVar[str]
    has_base_value: ClassVar[bool]
    is_complete: ClassVar[bool]

    @property
    def reference_set(self) -> References | None:
        """One array [K, *shape of the input], or one for each explained input; None without references."""

    @property
    def reference_weights(self) -> npt.ArrayLike | None:
        """One weight per reference, or None for equal ones."""

    @property
    def options(self) -> dict[str, Any]:
        """What the manifest records, references aside."""

    def pull(self, op: Ops, call: Call, m: Tensor | tuple[Tensor, ...]) -> Sequence[Tensor | None]:
        """The multiplier of each input of `call`, given the multiplier(s) of its output(s)."""

    def attribute(
        self, op: Ops, m: Tensor, x: Tensor, r: Tensor | None, weights: np.ndarray | None
    ) -> Tensor:
        """The attributions of an input from its multiplier: no K among the axes of the result."""


def pull_back(at: At, call: Call, m: Any) -> list[Tensor | None]:
    """Every varying input's pullback at a point.

    Raises:
        UnsupportedModelError: an input varies for which the operator's rule has no pullback.
    """
    leaving: list[Tensor | None] = []
    for i, (varying, pullback) in enumerate(zip(call.varying, at.pullbacks, strict=True)):
        if varying and pullback is None:
            raise UnsupportedModelError(
                f"its input {i} ({call.inputs[i]!r}) depends on what is explained; its rule takes that as "
                "fixed"
            )
        leaving.append(pullback(m) if varying and pullback is not None else None)
    return leaving
