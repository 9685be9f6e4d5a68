"""The protocol of a backend, over which a data plane runs an entry."""

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
    """Runner of entries. Call every method on the event loop; calls of `infer` may overlap."""

    name: str

    async def start(self, entries: Iterable[Entry]) -> Mapping[Entry, str]:
        """Load and warm every entry; return the reasons of those that fail to load or to warm up.

        Raises NotReadyError if the server behind the backend cannot be reached.
        """

    async def load(self, entry: Entry) -> None:
        """Load and warm one more entry while others serve; an older one of its name keeps answering.

        Raises:
            RepositoryError: if it cannot be loaded, fails its warmup, or answers its probe rows wrongly.
                Nothing has changed then.
            NotReadyError: if the server behind the backend cannot be reached.
        """

    async def unload(self, entry: Entry) -> None:
        """Finish the entry's accepted requests, then free it. No error if it is not loaded."""

    def devices(self, entry: Entry | None = None) -> tuple[str, ...]:
        """Return the devices of a loaded entry, or of all: cpu, cuda:0 … Empty if only Triton knows."""

    def runtime(self, entry: Entry) -> Mapping[str, Any]:
        """Return the environment that determines the last bits of a loaded entry's answers, as JSON."""

    def drift(self, entry: Entry) -> float | None:
        """Return the drift of a loaded entry: its answers' distance from the recorded ones to its probe rows.

        The drift is a fraction of an output's range; None if it is within the tolerance.
        """

    async def ready(self, entry: Entry | None = None) -> bool:
        """Tell whether the entry, or for None every entry, can run now."""

    def admit(self, entry: Entry, deadline_s: float = math.inf) -> None:
        """Raise the error that `infer` would raise for a small request now; called before a body is read.

        Raises:
            QueueFullError, NotReadyError, DeadlineError: if `infer` would.
        """

    async def infer(
        self, entry: Entry, inputs: Tensors, outputs: Sequence[str], deadline_s: float = math.inf
    ) -> Tensors:
        """Run at most `max_batch_size` rows (axis 0 of every input); return the requested outputs.

        The caller has checked `inputs`: their names, dtypes and shapes are the entry's. At `deadline_s`, on
        the event loop's clock, the caller leaves: the backend refuses requests that it cannot answer by then.
        Cancelling the call frees its place and disturbs no other call.

        Raises:
            QueueFullError: if too many requests wait.
            NotReadyError: if the entry is not loaded.
            DeadlineError: if the deadline cannot be kept.
            InvalidInputError: if the model refuses these values.
            ModelFailedError: if the run fails for another reason.
        """

    async def stop(self) -> None:
        """Finish accepted requests, then free everything."""


def add_gate(inputs: Tensors, gate: bool) -> Tensors:
    """Return the feeds of a one-shot entry's graph: `inputs`, and the gate that asks for explanations."""
    rows = len(next(iter(inputs.values())))
    return inputs | {EXPLAIN: np.full((rows, 1), gate)}


def run_failure(entry: Entry, *, refused: bool) -> InvalidInputError | ModelFailedError:
    """Return the error for a failed run.

    ONNX Runtime's own text names inner nodes, so it stays in the log.

    Args:
        refused: True if a node found its arguments invalid; values of a checked input can cause this.
    """
    if refused or entry.variable_shape:  # open shapes cannot be checked beforehand
        return InvalidInputError(NODE_REFUSED.format(name=entry.name))
    return ModelFailedError(NODE_FAILED.format(name=entry.name))
