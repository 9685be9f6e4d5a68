"""Resolver of explain requests that bring their own references or name a stored reference set.

A graph with precomputed rows answers for a named set; it is made at the set's upload or first use. A graph
with references as an input answers for a request's own references (an open entry: `NAME_explain_open` of the
repository, or one made in the background). If the operator asks for it, the gateway also stores and
precomputes references that come repeatedly. All graphs give the same numbers.

    OIP    tensors `{input}_references` [K, …] beside the inputs, and `reference_weights` [K] if they have
           weights; or the parameter `reference_set`
    v1     the member `references`, a list like `instances`; or `reference_set`

Or the request brings a partner for each row, its only reference: tensors `{input}_compare_with` [N or 1, …].
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from cachetools import LRUCache

from rationale.references.request_time import (
    WEIGHTS,
    pair_references,
    partner_name,
    references_name,
    repeat_references,
)
from rationale.schema.manifest import OPEN_SUFFIX, Manifest, OpenReferenceInputs
from rationale.schema.methods import takes_request_references
from rationale_service.engine.dataplane import DataPlane
from rationale_service.errors import InvalidInputError, NotReadyError, ServiceError, TooLargeError
from rationale_service.models.explainers.records import HIDDEN
from rationale_service.models.explainers.service import Explainers
from rationale_service.models.explainers.spec import ExplainerSpec, MethodOptions
from rationale_service.models.references.formats import ReferenceRows, check_rows
from rationale_service.models.references.store import ReferenceSets
from rationale_service.observability.metrics import Metrics
from rationale_service.repository.entry import Entry
from rationale_service.settings import Settings
from rationale_service.tensors import Tensors

log = logging.getLogger(__name__)

_SAME = ("output", "logits", "targets", "inputs", "sizes", "groups")  # copied from an entry's request
_REMEMBERED = 4096  # number of digests of earlier sets, without their rows


@dataclass(frozen=True)
class AnsweringEntry:
    """The entry that answers a request, and its inputs; `references` is the digest of the reference set."""

    entry: Entry
    inputs: Tensors
    references: str | None = None


@dataclass(frozen=True)
class _ReferenceRequest:
    """A request with its own or named references.

    Attributes:
        model: name of the plain model; `spec` describes the requested explainer.
        inputs: the model's own inputs.
        deadline_s: deadline on the event loop's clock.
    """

    model: str
    spec: ExplainerSpec
    inputs: Tensors
    deadline_s: float


class ReferenceResolver:
    """Resolver that chooses the entry for a request with its own or named references."""

    def __init__(
        self, explainers: Explainers, sets: ReferenceSets, settings: Settings, metrics: Metrics
    ) -> None:
        self._explainers = explainers
        self._sets = sets
        self._open_rows = settings.open_references
        self._unnamed = settings.max_unnamed_reference_sets
        self._most_bytes = settings.max_reference_bytes
        self._precompute_after = settings.bake_references_after
        self._counts = metrics.cache("baked_references")
        self._seen: LRUCache[str, int] = LRUCache(_REMEMBERED)

    async def choose(
        self,
        plane: DataPlane,
        entry: Entry,
        inputs: Tensors,
        reference_set: str | None,
        deadline_s: float,
    ) -> AnsweringEntry:
        """Return the entry that answers: `entry` itself if the request mentions no references.

        Args:
            deadline_s: time until which to wait for an unfinished entry, on the event loop's clock.

        Raises:
            InvalidInputError: if the references do not fit, or the method takes none.
            UnknownResourceError: if there is no such set.
            NotReadyError: if the entry is still being made.
            CompileFailedError: if the entry cannot be made.
        """
        manifest = entry.manifest
        partners = {} if manifest is None else _partners(manifest, inputs)
        if manifest is not None and partners:
            return await self._pairs(plane, entry, manifest, inputs, partners, reference_set, deadline_s)
        request_references = {} if manifest is None else _request_references(entry, manifest, inputs)
        if manifest is None or (reference_set is None and not request_references):
            return AnsweringEntry(entry, inputs)
        if reference_set is not None and request_references:
            raise InvalidInputError("a request takes references or a reference_set, not both")
        model_inputs = {name: array for name, array in inputs.items() if name not in request_references}
        question = _ReferenceRequest(manifest.model, spec_of(manifest), model_inputs, deadline_s)
        if reference_set is not None:
            digest = self._sets.find(reference_set, manifest.model)
            return await self._find_precomputed(question, digest)
        rows = _rows_of(manifest, plane.repository.entry(manifest.model), request_references)
        if rows.count > self._open_rows:
            raise InvalidInputError(
                f"{rows.count} references in a request, but at most {self._open_rows} are allowed. Upload "
                "them as a reference set, and send its name"
            )
        digest = rows.digest
        if await self._is_precomputed(question, rows, digest):
            return await self._find_precomputed(question, digest)
        open_entry = await self._open(question, _find_open_entry(plane, entry, rows.count), self._open_rows)
        return AnsweringEntry(open_entry, self._with_references(open_entry, model_inputs, rows), digest)

    async def _pairs(
        self,
        plane: DataPlane,
        entry: Entry,
        manifest: Manifest,
        inputs: Tensors,
        partners: Mapping[str, str],
        reference_set: str | None,
        deadline_s: float,
    ) -> AnsweringEntry:
        """Return the entry that compares each row with its partner alone; see `choose`.

        Args:
            partners: the explained input of each name under which the request brings partners.
        """
        if reference_set is not None or _request_references(entry, manifest, inputs):
            raise InvalidInputError(
                "compare_with is the only reference of each row: leave references and reference_set out"
            )
        model_inputs = {name: array for name, array in inputs.items() if name not in partners}
        missing = [f"'{name}'" for name in _inputs_of_partners(manifest) if name not in partners]
        if missing:
            raise InvalidInputError(f"rows to compare with are missing: {', '.join(missing)}")
        arrays = {tensor: inputs[name] for name, tensor in partners.items()}
        model = plane.repository.entry(manifest.model)
        rows = check_rows(arrays, model, manifest, called="rows of compare_with")
        count = _count(model_inputs)
        if rows.count not in (1, count):
            raise InvalidInputError(
                f"compare_with has {rows.count} rows for {count}: send one for each, or one for all"
            )
        question = _ReferenceRequest(manifest.model, spec_of(manifest), model_inputs, deadline_s)
        open_entry = await self._open(question, _find_open_entry(plane, entry, 1), 1)
        references = self._demand_room(open_entry, rows, count)
        repeated = {name: np.repeat(a, count // rows.count, axis=0) for name, a in rows.arrays.items()}
        fed = pair_references(references, repeated)
        return AnsweringEntry(open_entry, model_inputs | fed, rows.digest)

    async def _wait_for_entry(
        self, question: _ReferenceRequest, spec: ExplainerSpec, references: str | None
    ) -> Entry:
        try:
            async with asyncio.timeout_at(question.deadline_s):
                return await self._explainers.wait_for_entry(question.model, spec, references)
        except TimeoutError as error:
            raise NotReadyError(
                "the explainer for these references is being compiled: try again later"
            ) from error

    # --- precomputed --------------------------------------------------------------------------------------

    async def _find_precomputed(self, question: _ReferenceRequest, digest: str) -> AnsweringEntry:
        entry = await self._wait_for_entry(question, question.spec, digest)
        self._counts.hit()
        return AnsweringEntry(entry, question.inputs, digest)

    async def _is_precomputed(self, question: _ReferenceRequest, rows: ReferenceRows, digest: str) -> bool:
        """Tell whether an entry has these rows precomputed; begin to make one if they came often enough."""
        if not self._precompute_after:
            return False
        times = self._seen[digest] = self._seen.get(digest, 0) + 1
        try:
            if not self._sets.named(digest):
                if times < self._precompute_after:
                    return False
                name = f"{HIDDEN}{digest[:16]}"
                await asyncio.to_thread(self._sets.put, name, question.model, rows)
                await self._make_room()
            return await self._explainers.ensure(question.model, question.spec, digest) is not None
        except ServiceError as error:
            log.warning("references of a request for %s are not precomputed: %s", question.model, error)
            return False

    async def _make_room(self) -> None:
        """Delete the oldest unnamed sets and the explainers precomputed from them."""
        unnamed = [item for item in self._sets.all() if item.name.startswith(HIDDEN)]
        for item in sorted(unnamed, key=lambda item: item.created_s)[: max(len(unnamed) - self._unnamed, 0)]:
            with self._sets.leaving(item.digest):
                if self._sets.named(item.digest) == [item.name]:
                    await self._explainers.forget(item.digest)
                await asyncio.to_thread(self._sets.remove, item.name)

    # --- open ---------------------------------------------------------------------------------------------

    async def _open(self, question: _ReferenceRequest, written: Entry | None, count: int) -> Entry:
        """Return the entry that takes `count` references for each row as an input, or more if written."""
        spec = question.spec
        if not takes_request_references(spec.method, spec.options.model_dump()):
            raise InvalidInputError(
                f"{spec.method} with these options needs its references before the request: upload them as "
                "a reference set, and send its name"
            )
        self._counts.miss()
        open_spec = spec.model_copy(update={"open_references": count})
        return written or await self._wait_for_entry(question, open_spec, None)

    def _with_references(self, entry: Entry, inputs: Tensors, rows: ReferenceRows) -> Tensors:
        count = _count(inputs)
        if not count:
            return inputs  # the usual check refuses an empty request
        fed = repeat_references(self._demand_room(entry, rows, count), rows.arrays, rows.weights, count)
        return inputs | {name: np.ascontiguousarray(array) for name, array in fed.items()}

    def _demand_room(self, entry: Entry, rows: ReferenceRows, count: int) -> OpenReferenceInputs:
        """Return the references that an open entry takes; raise TooLargeError if `count` rows of them are."""
        open_references = entry.manifest.open_references if entry.manifest is not None else None
        assert open_references is not None  # noqa: S101 (it is an open entry)
        each = sum(array.nbytes // len(array) for array in rows.arrays.values())
        if count * open_references.count * each > self._most_bytes:
            raise TooLargeError(
                f"{count} rows with {open_references.count} references each are more than {self._most_bytes} "
                "bytes: send fewer rows at once, or upload the references as a set"
            )
        return open_references


def _count(inputs: Tensors) -> int:
    """Return the number of rows of the model's inputs."""
    return max((len(array) for array in inputs.values() if array.ndim), default=0)


def _rows_of(manifest: Manifest, plain: Entry, references: Tensors) -> ReferenceRows:
    """Return the references of a request. Raises InvalidInputError."""
    names = _inputs_of_references(manifest)
    missing = [f"'{name}'" for name in names if name not in references]
    if missing:
        raise InvalidInputError(f"references are missing: {', '.join(missing)}")
    arrays = {names[name]: array for name, array in references.items() if name != WEIGHTS}
    return check_rows(arrays, plain, manifest, references.get(WEIGHTS))


def _request_references(entry: Entry, manifest: Manifest, inputs: Tensors) -> Tensors:
    """Return the references of a request by their input names."""
    open_references = manifest.open_references
    if open_references is None and len(inputs) == len(entry.inputs):
        return {}  # most requests, or an unfit one
    if (
        open_references is not None
        and open_references.weights.name in inputs
        and inputs[open_references.weights.name].ndim > 1
    ):
        return {}  # the graph's own inputs, one set for each row
    names = _inputs_of_references(manifest)
    references = {name: array for name, array in inputs.items() if name in names}
    if references and WEIGHTS in inputs:
        references[WEIGHTS] = inputs[WEIGHTS]
    return references


def _partners(manifest: Manifest, inputs: Tensors) -> dict[str, str]:
    """Return the explained input of each name under which a request brings rows to compare with."""
    if len(inputs) <= len(manifest.inputs):
        return {}  # most requests
    return {name: tensor for name, tensor in _inputs_of_partners(manifest).items() if name in inputs}


def _inputs_of_partners(manifest: Manifest) -> dict[str, str]:
    """Map `{input}_compare_with` → the explained input, unless an input of the model has that name."""
    return _beside_inputs(manifest, partner_name)


def _inputs_of_references(manifest: Manifest) -> dict[str, str]:
    """Map `{input}_references` → the explained input, unless an input of the model has that name."""
    return _beside_inputs(manifest, references_name)


def _beside_inputs(manifest: Manifest, name_in_request: Callable[[str], str]) -> dict[str, str]:
    input_names = {spec.name for spec in manifest.inputs}
    named = {name_in_request(item.tensor.name): item.tensor.name for item in manifest.explained}
    return {
        name: tensor for name, tensor in named.items() if name not in input_names and tensor in input_names
    }


def takes_own_references(manifest: Manifest) -> bool:
    """Tell whether requests may bring references of their own: others need them beforehand, or have none."""
    is_open = takes_request_references(manifest.request.method, manifest.method.options)
    return manifest.base_value is not None and is_open


def spec_of(manifest: Manifest) -> ExplainerSpec:
    """Return the spec that explains as an entry does, without its references. Raises InvalidInputError."""
    if manifest.base_value is None or (manifest.references is None and manifest.open_references is None):
        raise InvalidInputError(
            f"{manifest.method.name} uses no references: choose another explainer, or send none"
        )
    request = manifest.request
    options: dict[str, Any] = {k: v for k, v in request.options.items() if v is not False}
    if space := manifest.method.options.get("space"):  # chosen by a decision profile if not by the request
        options["space"] = space
    if not options.keys() <= MethodOptions.model_fields.keys():
        raise InvalidInputError(f"{manifest.method.name} cannot be compiled again with other references")
    names = request.features
    alone = next(iter(names.values())) if isinstance(names, dict) and len(manifest.explained) == 1 else names
    return ExplainerSpec(
        method=request.method,
        options=MethodOptions(**options),
        features=alone,
        default=False,
        **{
            name: getattr(request, name)
            for name in ("output", "logits", "targets", "inputs", "sizes", "groups")
        },
    )


def _find_open_entry(plane: DataPlane, entry: Entry, rows: int) -> Entry | None:
    """Return an open entry that explains as `entry` does: itself, or a compiled one; else None."""
    for candidate in (entry, plane.repository.entries.get(f"{_way(entry)[0]}{OPEN_SUFFIX}")):
        open_references = candidate and candidate.manifest and candidate.manifest.open_references
        if candidate and open_references and rows <= open_references.count and _way(candidate) == _way(entry):
            return candidate
    return None


def _way(entry: Entry) -> tuple[object, ...]:
    manifest = entry.manifest
    if manifest is None:
        return (entry.name,)
    return (
        manifest.model,
        manifest.digests.model,
        manifest.method,
        manifest.explained_output,
        manifest.targets,
        tuple(item.tensor.name for item in manifest.explained),
        manifest.players,
    )
