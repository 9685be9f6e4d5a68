"""Proof of a loaded entry: its runtime answers its probe rows before any request."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rationale.errors import RepositoryError
from rationale.schema.probes import ALLOW, ProbeDifference, Probes
from rationale_service.repository.entry import Entry
from rationale_service.tensors import Tensors, encode_texts

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ProbeCheck:
    """The probe rows of an entry, and the judgement of their answers.

    Attributes:
        is_allowed: True to serve an entry whose answers differ from the recorded ones.
    """

    entry: Entry
    probes: Probes
    is_allowed: bool

    @property
    def outputs(self) -> list[str]:
        """Outputs of the entry with recorded answers."""
        recorded = {output.name for output in self.probes.outputs}
        return [name for name in self.entry.output_names if name in recorded]

    def requests(self) -> Iterator[Tensors]:
        """Yield the rows in batches of at most the entry's `max_batch_size`."""
        specs = self.entry.input_specs
        feeds = {n: encode_texts(a) for n, a in self.probes.feeds.items() if n in specs}
        for name in feeds.keys() & self.entry.reshapes.keys():
            feeds[name] = feeds[name].reshape(-1, *specs[name].shape)
        for first in range(0, self.probes.rows, self.entry.max_batch_size):
            yield {name: array[first : first + self.entry.max_batch_size] for name, array in feeds.items()}

    def drift(self, answers: list[Tensors], runtime: str) -> float | None:
        """Judge the answers; return their distance from the recorded ones, or None within the tolerance.

        Args:
            runtime: name of the runtime that answered.

        Raises:
            RepositoryError: if the distance exceeds the tolerance, and the settings do not allow that.
        """
        joined = {name: np.concatenate([answer[name] for answer in answers]) for name in self.outputs}
        difference: ProbeDifference = self.probes.compare(joined)
        text = f"{self.entry.name}: {difference.describe(runtime, self.probes.runtime)}"
        if difference.is_broken and not self.is_allowed:
            raise RepositoryError(
                f"{text}. Serve it with the version that compiled it, compile it again with this version, "
                f"or set {ALLOW}=true to serve it anyway: every answer then states the difference"
            )
        if difference.is_notable:
            log.warning("%s", text)
        return difference.value if difference.is_broken else None


def proof_of(entry: Entry, *, is_allowed: bool) -> ProbeCheck | None:
    """Return the proof for an entry; None if it was written without probe rows.

    Raises:
        RepositoryError: if its files differ from the compiled ones.
    """
    version = entry.model_path.parent
    promised = entry.manifest is not None and entry.manifest.measured.probe_rows > 0
    probes = Probes.read(version, promised=promised)
    if probes is None:
        return None
    try:
        probes.check_files(version)
    except RepositoryError as error:
        if not is_allowed:
            raise
        log.warning("%s", error)
    return ProbeCheck(entry, probes, is_allowed)
