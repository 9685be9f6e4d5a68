"""Several ways to compute the same: which is fastest depends on shapes, provider and threads.

    adjoint = Task("convolution adjoint")

    @adjoint.form("flipped kernel", fits=lambda g: g.dense, cost=lambda site: 1.0)
    def by_flipped_kernel(op, m, w, geometry):
        return op.Conv(m, flipped(op, w, geometry.group), pads=…)

A rule calls `adjoint(op, m, w, geometry=g)`. Forms answer the same to rounding (held by
tests/compiler/graph/test_variants.py) and differ in time and memory alone: the least `cost` is taken, or with
`Deployment(tune=True)` the one that is fastest when timed.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any, Protocol

from compiler.deployment import Deployment
from compiler.graph.tensor import Tensor
from compiler.manifest import Forms as Described

if TYPE_CHECKING:
    from compiler.graph.ops import Ops


@dataclass(frozen=True)
class Site:
    """Where a form is to stand.

    Attributes:
        geometry: of the task, hashable: sizes, strides, what else its forms choose by.
        rows: for which it is computed at a batch of one: targets, references and points together.
        deployment: provider, threads, storage.
    """

    geometry: Any
    rows: int
    deployment: Deployment


@dataclass(frozen=True)
class Form:
    """One way: `emit(op, *operands, geometry)`, where it `fits`, at `cost(site)`.

    Costs are times over that of one common measure of the task, so that they can be compared.
    """

    name: str
    emit: Callable[..., Tensor]
    fits: Callable[[Any], bool]
    cost: Callable[[Site], float]


class Task:
    """What can be computed in several forms."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.forms: dict[str, Form] = {}
        _TASKS[name] = self

    def form(
        self, name: str, *, cost: Callable[[Site], float], fits: Callable[[Any], bool] = lambda _: True
    ) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
        """Declares a form."""

        def declare(emit: Callable[..., Tensor]) -> Callable[..., Tensor]:
            self.forms[name] = Form(name, emit, fits, cost)
            return emit

        return declare

    def fitting(self, geometry: Any) -> list[Form]:
        return [form for form in self.forms.values() if form.fits(geometry)]

    def __call__(self, op: "Ops", *operands: Tensor, geometry: Any) -> Tensor:
        return op.forms.choose(self, op, operands, geometry).emit(op, *operands, geometry)


class Stopwatch(Protocol):
    """Times forms on this machine."""

    def __call__(
        self, op: "Ops", forms: Sequence[Form], operands: Sequence[Tensor], geometry: Any
    ) -> Mapping[str, float]:
        """Seconds of each form, by name."""


@dataclass
class Forms:
    """The choices of one compile.

    Attributes:
        taken: how often each form was chosen, by "task: form".
        timed: milliseconds of every form that was timed, by task and site.
    """

    deployment: Deployment
    stopwatch: Stopwatch | None = None
    taken: Counter[str] = field(default_factory=Counter)
    timed: dict[str, dict[str, float]] = field(default_factory=dict)
    _known: dict[tuple[str, Any, int], Form] = field(default_factory=dict)

    def describe(self) -> Described:
        """For the manifest."""
        d = self.deployment
        return Described(
            provider=d.provider, threads=d.cores, taken=dict(sorted(self.taken.items())), timed=self.timed
        )

    def begin(self) -> None:
        """A graph is built (again): what was timed is still known, what was taken is not."""
        self.taken.clear()

    def choose(self, task: Task, op: "Ops", operands: Sequence[Tensor], geometry: Any) -> Form:
        """The form with the least cost, or the fastest one where forms are timed."""
        rows = prod(op.sizes[a] for a in frozenset().union(*(t.lead for t in operands)) if a != "N")
        key = (task.name, geometry, rows)
        if key not in self._known:
            self._known[key] = self._best(task, op, operands, Site(geometry, rows, self.deployment))
        chosen = self._known[key]
        self.taken[f"{task.name}: {chosen.name}"] += 1
        return chosen

    def _best(self, task: Task, op: "Ops", operands: Sequence[Tensor], site: Site) -> Form:
        forms = task.fitting(site.geometry)
        if self.stopwatch is None or len(forms) == 1:
            return min(forms, key=lambda form: form.cost(site))
        seconds = self.stopwatch(op, forms, operands, site.geometry)
        label = f"{task.name}, {site.rows} rows, {site.geometry}"
        self.timed[label] = {name: round(1e3 * s, 4) for name, s in seconds.items()}
        return min(forms, key=lambda form: seconds[form.name])


_TASKS: dict[str, Task] = {}


def all_tasks() -> Mapping[str, Task]:
    """By name."""
    return dict(sorted(_TASKS.items()))
