"""Several ways to compute the same: which is fastest depends on shapes, provider and threads.

    adjoint = Task("convolution adjoint")

    @adjoint.variant("flipped kernel", fits=lambda g: g.dense, cost=lambda site: 1.0)
    def by_flipped_kernel(op, m, w, geometry):
        return op.Conv(m, flipped(op, w, geometry.group), pads=…)

A rule calls `adjoint(op, m, w, geometry=g)`. Variants answer the same to rounding (held by
tests/compiler/graph/test_variants.py) and differ in time and memory alone: the least `cost` is taken.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, Protocol

from rationale.graph.tensor import Tensor
from rationale.schema.machine import Deployment
from rationale.schema.manifest import Variants as Described


@dataclass(frozen=True)
class Site:
    """Where a variant is to stand.

    Attributes:
        geometry: of the task, hashable: sizes, strides, what else its variants choose by.
        rows: for which it is computed at a batch of one: targets, references and points together.
        deployment: provider, threads, storage, runtime.
    """

    geometry: Any
    rows: int
    deployment: Deployment


@dataclass(frozen=True)
class Variant:
    """One way: `emit(op, *operands, geometry)`, where it `fits`, at `cost(site)`.

    Costs are times over that of one common measure of the task, so that they can be compared.
    """

    name: str
    emit: Callable[..., Tensor]
    fits: Callable[[Any], bool]
    cost: Callable[[Site], float]


@dataclass
class Variants:
    """The choices of one compile.

    Attributes:
        taken: how often each variant was chosen, by "task: variant".
    """

    deployment: Deployment
    taken: Counter[str] = field(default_factory=Counter)

    def describe(self) -> Described:
        """For the manifest."""
        d = self.deployment
        taken = dict(sorted(self.taken.items()))
        return Described(provider=d.provider, threads=d.cores, runtime=d.runtime, taken=taken)

    def begin(self) -> None:
        """Forget what was taken, before a graph is built (again)."""
        self.taken.clear()


class Chooser(Protocol):
    """What a task asks of `Ops`."""

    @property
    def sizes(self) -> Mapping[str, int]: ...

    @property
    def variants(self) -> Variants: ...


class Task:
    """What can be computed in several ways."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.variants: dict[str, Variant] = {}
        TASKS[name] = self

    def variant(
        self, name: str, *, cost: Callable[[Site], float], fits: Callable[[Any], bool] = lambda _: True
    ) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
        """Declare one of the ways."""

        def declare(emit: Callable[..., Tensor]) -> Callable[..., Tensor]:
            self.variants[name] = Variant(name, emit, fits, cost)
            return emit

        return declare

    def fitting(self, geometry: Any) -> list[Variant]:
        return [variant for variant in self.variants.values() if variant.fits(geometry)]

    def __call__(self, op: Chooser, *operands: Tensor, geometry: Any) -> Tensor:
        """Emit the variant with the least cost."""
        batch_axes = frozenset[str]().union(*(t.batch_axes for t in operands))
        site = Site(geometry, prod(op.sizes[a] for a in batch_axes - {"N"}), op.variants.deployment)
        chosen = min(self.fitting(geometry), key=lambda variant: variant.cost(site))
        op.variants.taken[f"{self.name}: {chosen.name}"] += 1
        return chosen.emit(op, *operands, geometry)


TASKS: dict[str, Task] = {}
"""By name."""
