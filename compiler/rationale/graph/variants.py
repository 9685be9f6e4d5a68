"""Choices between several ways to compute one result; the fastest depends on shapes, provider and threads.

    adjoint = Task("convolution adjoint")

    @adjoint.variant("flipped kernel", fits=lambda g: g.dense, cost=lambda site: 1.0)
    def by_flipped_kernel(op, m, w, geometry):
        return op.Conv(m, flipped(op, w, geometry.group), pads=…)

A rule calls `adjoint(op, m, w, geometry=g)`. Variants agree to rounding
(tests/compiler/graph/test_variants.py checks it) and differ only in time and memory: the one with the least
`cost` is used.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, Protocol

from rationale.graph.tensor import Tensor
from rationale.schema.machine import Deployment
from rationale.schema.manifest import ChosenVariants


@dataclass(frozen=True)
class Site:
    """The place in a graph for which a variant is chosen.

    Attributes:
        geometry: the task's sizes, strides and other criteria of its variants; hashable.
        rows: the number of rows at a batch of one: targets, references and points together.
        deployment: provider, threads, storage, runtime.
    """

    geometry: Any
    rows: int
    deployment: Deployment


@dataclass(frozen=True)
class TaskVariant:
    """One implementation: `emit(op, *operands, geometry)`, usable if it `fits`, at `cost(site)`.

    Costs are times relative to a unit common to the task, so that they can be compared.
    """

    name: str
    emit: Callable[..., Tensor]
    fits: Callable[[Any], bool]
    cost: Callable[[Site], float]


@dataclass
class VariantChoices:
    """The choices of one compile.

    Attributes:
        uses: the number of uses of each variant, by "task: variant".
    """

    deployment: Deployment
    uses: Counter[str] = field(default_factory=Counter)

    def describe(self) -> ChosenVariants:
        """Return the choices for the manifest."""
        d = self.deployment
        uses = dict(sorted(self.uses.items()))
        return ChosenVariants(provider=d.provider, threads=d.cores, runtime=d.runtime, taken=uses)

    def begin(self) -> None:
        """Forget the choices, before a graph is built (again)."""
        self.uses.clear()


class Chooser(Protocol):
    """The part of `Ops` that a task needs."""

    @property
    def sizes(self) -> Mapping[str, int]: ...

    @property
    def variants(self) -> VariantChoices: ...


class Task:
    """A computation with several implementations."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.variants: dict[str, TaskVariant] = {}
        TASKS[name] = self

    def variant(
        self, name: str, *, cost: Callable[[Site], float], fits: Callable[[Any], bool] = lambda _: True
    ) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
        """Declare an implementation."""

        def declare(emit: Callable[..., Tensor]) -> Callable[..., Tensor]:
            self.variants[name] = TaskVariant(name, emit, fits, cost)
            return emit

        return declare

    def fitting(self, geometry: Any) -> list[TaskVariant]:
        return [variant for variant in self.variants.values() if variant.fits(geometry)]

    def __call__(self, op: Chooser, *operands: Tensor, geometry: Any) -> Tensor:
        """Emit the variant with the least cost."""
        batch_axes = frozenset[str]().union(*(t.batch_axes for t in operands))
        site = Site(geometry, prod(op.sizes[a] for a in batch_axes - {"N"}), op.variants.deployment)
        chosen = min(self.fitting(geometry), key=lambda variant: variant.cost(site))
        op.variants.uses[f"{self.name}: {chosen.name}"] += 1
        return chosen.emit(op, *operands, geometry)


TASKS: dict[str, Task] = {}
"""All tasks by name."""
