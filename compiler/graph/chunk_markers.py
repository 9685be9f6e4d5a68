"""Axes that are walked in chunks, and how a graph under construction says so.

Where an axis (the references' K, or the points' S) is chunked, the graph is built for the rows of one chunk.
Three pseudo-operators mark where that region begins and ends; `scan` replaces them:

- `Chunk()` is a chunk's part of an array that runs along the axis;
- `Sum(x, zeros)` is the sum of x over all chunks;
- `Moments(squares, mean, weight, zeros, zeros, zeros)` merges what chunks know of a weighted mean to the sum
  of squared deviations of all (Chan, Golub and LeVeque, "Updating Formulae …", 1979, equation 2.1).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

DOMAIN = "rationale.chunks"  # of pseudo-operators: none is left in a finished graph


@dataclass(frozen=True)
class Axis:
    """`count` rows, walked `size` at a time; the last chunk is filled up with rows of weight 0."""

    count: int
    size: int

    @property
    def chunks(self) -> int:
        return -(-self.count // self.size)

    @property
    def is_even(self) -> bool:
        """Whether nothing has to be filled up."""
        return self.count % self.size == 0

    def cut(self, array: np.ndarray, *, zeros: bool = False) -> np.ndarray:
        """[count, …] → [chunks, size, …], filled up with copies of the last row, or with zeros."""
        surplus = self.chunks * self.size - self.count
        if surplus:
            last = np.zeros_like(array[-1:]) if zeros else array[-1:]
            array = np.concatenate([array, *[last] * surplus])
        return array.reshape(self.chunks, self.size, *array.shape[1:])


@dataclass
class Chunks:
    """The chunked axes by name, and what enters their regions.

    Attributes:
        parts: by the `part` attribute of a Chunk node: its axis and its arrays, [chunks, …].
        whole: the constants that run along an axis that is walked as a whole.
    """

    axes: Mapping[str, Axis] = field(default_factory=dict)
    parts: list[tuple[str, np.ndarray]] = field(default_factory=list)
    whole: dict[ir.Value, str] = field(default_factory=dict)

    def __contains__(self, axis: str) -> bool:
        return axis in self.axes

    def enter(self, axis: str, parts: np.ndarray) -> dict[str, str | int]:
        """Keep an array [chunks, …]; return the attributes of its Chunk node."""
        self.parts.append((axis, parts))
        return {"axis": axis, "part": len(self.parts) - 1}
