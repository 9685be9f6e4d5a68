"""Explain requests that bring references of their own, or name a reference set that is kept here.

The first request with a set is answered by a graph that takes references as an input (an open entry:
`NAME_explain_open` of the repository, or one made in the background). When a set comes back it is kept,
compiled and baked, also in the background, and later requests are answered by the baked graph, which costs
less. Both give the same numbers.

    OIP    tensors `{input}_references` [K, …] beside the inputs, and `reference_weights` [K] if they have
           some; or the parameter `reference_set`
    v1     the member `references`, a list as `instances` is; or `reference_set`
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from compiler.errors import RationaleError
from compiler.manifest import OPEN_SUFFIX, Manifest
from compiler.open_references import WEIGHTS, for_rows, references_name
from service.errors import (
    CompileFailedError,
    InvalidInputError,
    NotReadyError,
    ServiceError,
    TooLargeError,
)
from service.explainers.spec import ExplainerSpec, MethodOptions
from service.inference.dataplane import DataPlane, Lifecycle
from service.observability.metrics import CacheMetrics
from service.references.formats import Rows, check_rows, read_rows_file
from service.references.store import ReferenceSets
from service.repository.entry import Entry
from service.tensors import Tensors

log = logging.getLogger(__name__)

HIDDEN = "~"  # begins the names of sets that came with requests, and that nobody named
_REMEMBERED = 4096  # digests of sets that came: digests alone, no rows
_POLL_S = 0.05


class Explainers(Protocol):
    """What makes explainers; see `service.explainers.service`."""

    async def ensure(self, model: str, spec: ExplainerSpec, references: str | None) -> Entry | None:
        """The entry that explains so, or None while it is made."""

    async def failure(self, model: str, spec: ExplainerSpec, references: str | None) -> str | None:
        """Why it could not be made; None where that has not been found out."""

    async def forget(self, references: str) -> None:
        """Deletes all that holds a reference set."""


@dataclass(frozen=True)
class Limits:
    """Settings.

    Attributes:
        open_rows: K, the references that a request may bring.
        bake_after: requests with the same set before it is kept and baked; 0: never.
        kept: sets that are kept without a name.
        bytes: of the references of one request, once for each row.
    """

    open_rows: int
    bake_after: int
    kept: int
    bytes: int


@dataclass(frozen=True)
class Chosen:
    """The entry that answers a request and what it is fed; `references` is the digest of its set."""

    entry: Entry
    inputs: Tensors
    references: str | None = None


@dataclass(frozen=True)
class _Question:
    """A request that says against which references.

    Attributes:
        entry: what would answer it without them; `plain` is the model, `spec` how the entry explains that.
        inputs: the model's own.
    """

    plane: DataPlane
    entry: Entry
    plain: Entry
    spec: ExplainerSpec
    inputs: Tensors
    deadline_s: float


class ReferenceResolver:
    """Chooses what answers a request that says against which references."""

    def __init__(
        self, explainers: Explainers, sets: ReferenceSets, limits: Limits, counts: CacheMetrics
    ) -> None:
        self._explainers = explainers
        self._sets = sets
        self._limits = limits
        self._counts = counts
        self._seen: OrderedDict[str, int] = OrderedDict()
        self._baking: dict[str, asyncio.Task[None]] = {}

    async def choose(
        self,
        plane: DataPlane,
        entry: Entry,
        inputs: Tensors,
        reference_set: str | None,
        deadline_s: float,
    ) -> Chosen:
        """What answers: `entry` itself where the request says nothing of references.

        Args:
            deadline_s: on the event loop's clock; until then it may wait for an entry that is being made.

        Raises:
            InvalidInputError: references that do not fit, or for a method that has none.
            UnknownResourceError: no such set.
            NotReadyError: what answers is still being made.
            CompileFailedError: it cannot be made.
        """
        manifest = entry.manifest
        given = {} if manifest is None else _given(manifest, inputs)
        if manifest is None or (reference_set is None and not given):
            return Chosen(entry, inputs)
        if reference_set is not None and given:
            raise InvalidInputError("a request brings references or names a reference_set, not both")
        plain = plane.repository.entry(manifest.model)
        own = {name: array for name, array in inputs.items() if name not in given}
        question = _Question(plane, entry, plain, _spec_of(manifest), own, deadline_s)
        if reference_set is not None:
            return await self._by_name(question, reference_set)
        return await self._brought(question, _rows_of(manifest, plain, given))

    async def stop(self) -> None:
        """Ends what is done in the background."""
        tasks = list(self._baking.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _by_name(self, question: _Question, name: str) -> Chosen:
        known = self._sets.get(name)
        self._sets.find(name, question.plain.name)
        baked = await self._explainers.ensure(question.plain.name, question.spec, known.digest)
        if baked is not None:
            self._counts.hit()
            return Chosen(baked, question.inputs, known.digest)
        if known.rows <= self._limits.open_rows and _can_be_open(question.spec):
            rows = await asyncio.to_thread(read_rows_file, self._sets.path(known.digest))
            fitting = check_rows(rows.arrays, question.plain, rows.weights)
            return await self._open(question, fitting, known.digest)
        made = await self._awaited(question, question.spec, known.digest)
        return Chosen(made, question.inputs, known.digest)

    async def _brought(self, question: _Question, rows: Rows) -> Chosen:
        if rows.count > self._limits.open_rows:
            raise InvalidInputError(
                f"{rows.count} references in a request: {self._limits.open_rows} at most. Upload them as a "
                "reference set, and name it"
            )
        digest = rows.digest
        baked = await self._baked(question, rows, digest)
        if baked is not None:
            self._counts.hit()
            return Chosen(baked, question.inputs, digest)
        return await self._open(question, rows, digest)

    # --- baked --------------------------------------------------------------------------------------------

    async def _baked(self, question: _Question, rows: Rows, digest: str) -> Entry | None:
        """The entry that has them baked in. A set that has come often enough is kept and baked meanwhile."""
        if not self._limits.bake_after:
            return None
        times = self._seen.pop(digest, 0) + 1
        self._seen[digest] = times
        if len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)
        if not self._sets.named(digest):
            if times >= self._limits.bake_after and digest not in self._baking:
                task = asyncio.create_task(self._keep(question, rows, digest))
                self._baking[digest] = task
                task.add_done_callback(lambda _: self._baking.pop(digest, None))
            return None
        try:
            return await self._explainers.ensure(question.plain.name, question.spec, digest)
        except ServiceError as error:
            log.warning("references of a request for %s are not baked: %s", question.plain.name, error)
            return None

    async def _keep(self, question: _Question, rows: Rows, digest: str) -> None:
        model = question.plain.name
        try:
            await asyncio.to_thread(self._sets.put, f"{HIDDEN}{digest[:16]}", model, rows)
            await self._explainers.ensure(model, question.spec, digest)
            await self._make_room()
        except RationaleError as error:
            log.warning("references of a request for %s are not kept: %s", model, error)

    async def _make_room(self) -> None:
        """The oldest sets without a name go, with what was baked from them."""
        own = [one for one in self._sets.all() if one.name.startswith(HIDDEN)]
        for one in sorted(own, key=lambda one: one.created_s)[: max(len(own) - self._limits.kept, 0)]:
            with self._sets.leaving(one.digest):
                if self._sets.named(one.digest) == [one.name]:
                    await self._explainers.forget(one.digest)
                await asyncio.to_thread(self._sets.remove, one.name)

    # --- open ---------------------------------------------------------------------------------------------

    async def _open(self, question: _Question, rows: Rows, digest: str) -> Chosen:
        """The entry that takes references as an input, fed with them."""
        if not _can_be_open(question.spec):
            raise InvalidInputError(
                f"{question.spec.method} with these options needs its references beforehand: upload them as "
                "a reference set, and name it"
            )
        self._counts.miss()
        found = _written(question, rows.count)
        if found is None:
            asked = question.spec.model_copy(update={"open_references": self._limits.open_rows})
            found = await self._awaited(question, asked, None)
        return Chosen(found, self._fed(found, question.inputs, rows), digest)

    async def _awaited(self, question: _Question, spec: ExplainerSpec, references: str | None) -> Entry:
        """The entry, once it is made."""
        model, loop = question.plain.name, asyncio.get_running_loop()
        while (found := await self._explainers.ensure(model, spec, references)) is None:
            reason = await self._explainers.failure(model, spec, references)
            if reason is not None:
                raise CompileFailedError(reason)
            if question.plane.state is not Lifecycle.READY:
                raise NotReadyError(question.plane.state.value)
            if loop.time() + _POLL_S > question.deadline_s:
                raise NotReadyError("what answers requests with such references is being made: ask again")
            await asyncio.sleep(_POLL_S)
        return found

    def _fed(self, entry: Entry, inputs: Tensors, rows: Rows) -> Tensors:
        opened = entry.manifest.open_references if entry.manifest is not None else None
        count = max((len(array) for array in inputs.values() if array.ndim), default=0)
        if opened is None or not count:
            return inputs  # an empty request is refused as any other is
        each = sum(array.nbytes // len(array) for array in rows.arrays.values())
        if count * opened.count * each > self._limits.bytes:
            raise TooLargeError(
                f"{count} rows with {opened.count} references each are more than {self._limits.bytes} bytes: "
                "send fewer rows at once, or upload the references as a set"
            )
        fed = for_rows(opened, rows.arrays, rows.weights, count)
        return inputs | {name: np.ascontiguousarray(array) for name, array in fed.items()}


def _rows_of(manifest: Manifest, plain: Entry, given: Tensors) -> Rows:
    """The references of a request. Raises InvalidInputError."""
    names = _explained(manifest)
    missing = [f"'{name}'" for name in names if name not in given]
    if missing:
        raise InvalidInputError(f"references are missing: {', '.join(missing)}")
    arrays = {names[name]: array for name, array in given.items() if name != WEIGHTS}
    return check_rows(arrays, plain, given.get(WEIGHTS))


def _given(manifest: Manifest, inputs: Tensors) -> Tensors:
    """The references of a request, by the names they came under."""
    opened = manifest.open_references
    if opened is not None and opened.weights.name in inputs and inputs[opened.weights.name].ndim > 1:
        return {}  # the graph's own inputs, one set for each row
    names = _explained(manifest)
    found = {name: array for name, array in inputs.items() if name in names}
    if found and WEIGHTS in inputs:
        found[WEIGHTS] = inputs[WEIGHTS]
    return found


def _explained(manifest: Manifest) -> dict[str, str]:
    """`{input}_references` → the explained input, where no input of the model has that name."""
    own = {spec.name for spec in manifest.inputs}
    named = {references_name(item.tensor.name): item.tensor.name for item in manifest.explained}
    return {name: tensor for name, tensor in named.items() if name not in own and tensor in own}


_OPTIONS = frozenset(MethodOptions.model_fields)


def _spec_of(manifest: Manifest) -> ExplainerSpec:
    """How to explain as an entry does, with other references. Raises InvalidInputError."""
    if manifest.base_value is None or (manifest.references is None and manifest.open_references is None):
        raise InvalidInputError(
            f"{manifest.method.name} explains without references: choose another explainer, or send none"
        )
    options: Mapping[str, Any] = {k: v for k, v in manifest.method.options.items() if v is not False}
    if not options.keys() <= _OPTIONS:
        raise InvalidInputError(f"{manifest.method.name} cannot be made anew with other references")
    names = [item.feature_names for item in manifest.explained]
    return ExplainerSpec(
        method=manifest.method.name,
        options=MethodOptions(**options),
        output=manifest.explained_output,
        targets=manifest.targets if isinstance(manifest.targets, str) else list(manifest.targets),
        inputs=[item.tensor.name for item in manifest.explained],
        features=list(names[0]) if len(names) == 1 and names[0] is not None else None,
        default=False,
    )


def _can_be_open(spec: ExplainerSpec) -> bool:
    return spec.method in ("deepshap", "integrated-gradients") and not spec.options.standard_error


def _written(question: _Question, rows: int) -> Entry | None:
    """The open entry that `rationale compile` made, or the one asked for, where it explains the same way."""
    own = question.entry.manifest
    written = question.plane.repository.entries.get(f"{question.plain.name}{OPEN_SUFFIX}")
    for found in (question.entry, written):
        if own is None or found is None or found.manifest is None:
            continue
        opened = found.manifest.open_references
        if opened is not None and rows <= opened.count and _way(found.manifest) == _way(own):
            return found
    return None


def _way(manifest: Manifest) -> tuple[object, ...]:
    return (
        manifest.digests.model,
        manifest.method,
        manifest.explained_output,
        manifest.targets,
        tuple(item.tensor.name for item in manifest.explained),
    )
