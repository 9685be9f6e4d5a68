"""The protocol of a backend: what a data plane needs to run an entry."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from rationale.schema.manifest import EXPLAIN
from rationale_service.errors import InvalidInputError, ModelFailedError
from rationale_service.repository.entry import Entry
from rationale_service.tensors import Tensors

NODE_REFUSED = (
    "model '{name}' cannot compute these values: one is out of the range that the model knows "
    "(such as an index past the end of a table), or shapes do not go together"
)
NODE_FAILED = "model '{name}' failed on this input; the server's log tells why"


class Backend(Protocol):
    """Runs entries. Every method belongs to the event loop; `infer` may be called concurrently."""

    name: str

    async def start(self, entries: Iterable[Entry]) -> Mapping[Entry, str]:
        """Load and warm every entry; returns those that cannot be loaded or fail their warmup, and why.

        Raises NotReadyError: the server behind it cannot be reached.
        """

    async def load(self, entry: Entry) -> None:
        """Load and warm one more entry while others are served; another one of its name goes on answering.

        Raises:
            RepositoryError: it cannot be loaded, fails its warmup, or answers its probe rows wrongly.
                Nothing has changed then.
            NotReadyError: the server behind it cannot be reached.
        """

    async def unload(self, entry: Entry) -> None:
        """Finish what the entry has accepted, then free it. No error where it is not loaded."""

    def devices(self, entry: Entry | None = None) -> tuple[str, ...]:
        """Return where a loaded entry runs, or all: cpu, cuda:0 … Empty where only Triton knows."""

    def runtime(self, entry: Entry) -> Mapping[str, Any]:
        """Return what the last bits of a loaded entry's answers depend on, as JSON."""

    def drift(self, entry: Entry) -> float | None:
        """Return how far a loaded entry's answers to its probe rows are from those that are due.

        It is of an output's range; None if it is no more than is allowed.
        """

    async def ready(self, entry: Entry | None = None) -> bool:
        """Return whether the entry can run now; None means all."""

    def admit(self, entry: Entry, deadline_s: float = math.inf) -> None:
        """Raise what `infer` would raise for a small request now; called before a body is read.

        Raises:
            QueueFullError, NotReadyError, DeadlineError.
        """

    async def infer(
        self, entry: Entry, inputs: Tensors, outputs: Sequence[str], deadline_s: float = math.inf
    ) -> Tensors:
        """Run at most `max_batch_size` rows (axis 0 of every input); returns the requested outputs.

        `inputs` are checked: their names, dtypes and shapes are the entry's. `deadline_s`, on the event
        loop's clock, is when the caller leaves: what cannot be answered by then is refused. Cancelling the
        call gives its place up and disturbs no other call.

        Raises:
            QueueFullError, NotReadyError, DeadlineError, InvalidInputError, ModelFailedError.
        """

    async def stop(self) -> None:
        """Finish what was accepted, then free everything."""


def gated(inputs: Tensors, gate: bool) -> Tensors:
    """Return what the graph of a one-shot entry takes: `inputs`, and whether to explain them."""
    rows = len(next(iter(inputs.values())))
    return inputs | {EXPLAIN: np.full((rows, 1), gate)}


def run_failure(entry: Entry, *, refused: bool) -> InvalidInputError | ModelFailedError:
    """Return the error for a failed run.

    ONNX Runtime's own text names inner nodes and stays in the log.

    Args:
        refused: a node found its arguments invalid, which checked input can bring about by its values.
    """
    if refused or entry.variable_shape:  # open shapes cannot be checked beforehand
        return InvalidInputError(NODE_REFUSED.format(name=entry.name))
    return ModelFailedError(NODE_FAILED.format(name=entry.name))
