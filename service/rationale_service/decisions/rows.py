"""Rows of files, decided one by one as `:decide` decides them."""

import asyncio
import getpass
import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from rationale.artifact.compiled import Compiled
from rationale.artifact.entry import open_entry
from rationale.decisions.rows import profile_of, values_of
from rationale.schema.machine import available_cores
from rationale.schema.manifest import Manifest
from rationale_service.decisions.decider import RequestFacts, as_recorded, decisions_of, inputs_of
from rationale_service.decisions.trail import AuditTrail
from rationale_service.engine.backends.devices import Devices
from rationale_service.engine.backends.onnxruntime import load_warmed, run, runtime
from rationale_service.engine.checks import Faults, check_answer
from rationale_service.engine.features import form_of
from rationale_service.errors import InvalidInputError, NotFiniteError, UndecidedError
from rationale_service.repository.entry import Entry
from rationale_service.repository.registry import read_repository
from rationale_service.settings import Settings

_REFUSALS = (InvalidInputError, NotFiniteError, UndecidedError)

Instance = Mapping[str, Any]  # as a caller of `:decide` would send it
Line = dict[str, Any]  # the decision on a row, or a fault: why there is none
Decide = Callable[[Sequence[Instance], str], list[Line]]


@dataclass(frozen=True, eq=False)
class Deciding:
    """An entry that decides, by which rows are read and decided."""

    entry: Entry
    manifest: Manifest
    compiled: Compiled

    @classmethod
    def of(cls, repository: Path, name: str) -> "Deciding":
        """Open an entry.

        Raises:
            RepositoryError, UnknownModelError, NotExplainableError: no such model, or none that decides.
        """
        entry = read_repository(repository, strict=False).decider(name)
        manifest = entry.manifest
        assert manifest is not None  # noqa: S101 (it decides)
        return cls(entry, manifest, open_entry(repository, manifest.model))

    def digest(self, rows: Sequence[Instance]) -> str:
        """Return a digest of rows and of what decides them."""
        digest = hashlib.sha256(orjson.dumps(rows))
        for part in self.made_by:
            digest.update(f"\0{part}".encode())
        return digest.hexdigest()

    @property
    def made_by(self) -> tuple[str, ...]:
        """The digests of what decides."""
        profile = profile_of(self.manifest).digest
        return self.manifest.digests.explanation, profile, str(self.entry.graph_digest)

    def instances(
        self, inputs: Mapping[str, np.ndarray], extra: Mapping[str, Sequence[Any]]
    ) -> list[Instance]:
        """Return rows as a caller of `:decide` would send them.

        Args:
            inputs: of the model, [N, …] each.
            extra: columns that knock-outs look at.
        """
        form = form_of(self.entry, self.manifest)
        return [
            {name: values[name] for name in form.features}
            | {
                spec.name: inputs[spec.name][i].tolist()
                for spec in form.inputs
                if _is_whole(spec.name, form.features)
            }
            | {column: cells[i] for column, cells in extra.items()}
            for i, values in enumerate(values_of(self.manifest, inputs))
        ]

    @contextmanager
    def opened(self, settings: Settings, trail: AuditTrail) -> Iterator[Decide]:
        """Yield what decides rows and records their decisions under a key, and stop the trail.

        What was recorded under the key before is answered again.

        Raises:
            StateUnavailableError, ConflictError: the trail cannot be.
        """
        devices = replace(Devices.chosen(settings), cores=available_cores())
        warmed = load_warmed(self.entry, devices=devices)
        sessions = warmed.sessions
        device = sessions.devices[0]
        session, ran = sessions.by_device[device], runtime(self.entry, devices.cores, (device,))

        async def decide(rows: Sequence[Instance], key: str) -> list[Line]:
            began_s = time.monotonic()
            found = [await self._decided(session, row, warmed.drift) for row in rows]
            decided = [
                (row, each) for row, each in zip(rows, found, strict=True) if not isinstance(each, str)
            ]
            facts = RequestFacts(_caller(), "", (time.monotonic() - began_s) * 1e3 / max(len(rows), 1), key)
            made = as_recorded(
                self.entry, [row for row, _ in decided], [each for _, each in decided], ran, facts
            )
            recorded = iter(await trail.record(made))
            return [
                {"fault": each} if isinstance(each, str) else {"decision": next(recorded).answer}
                for each in found
            ]

        with asyncio.Runner() as runner:
            try:
                yield lambda rows, key: runner.run(decide(rows, key))
            finally:
                runner.run(trail.stop())

    async def _decided(self, session: Any, row: Instance, drift: float | None) -> dict[str, Any] | str:
        """Return the decision on one row, or why there is none."""
        try:
            inputs = inputs_of(self.entry, self.manifest, [row], Faults())
            answers = run(self.entry, session, inputs, self.entry.output_names)
            check_answer(self.entry, answers)
            (decision,) = await decisions_of(self.manifest, [row], inputs, answers, drift)
        except _REFUSALS as error:
            return str(error).removeprefix("instances[0]: ")
        return decision


def _is_whole(tensor: str, features: Mapping[str, tuple[str, int]]) -> bool:
    """Return whether an input has no features with names of their own."""
    return all(owner != tensor for owner, _ in features.values())


def _caller() -> str:
    """Return who the trail says has called: the user of this machine."""
    try:
        return f"rationale decide by {getpass.getuser()}"
    except (OSError, KeyError):  # a user without a name, as in a container
        return f"rationale decide by {os.getuid()}"
