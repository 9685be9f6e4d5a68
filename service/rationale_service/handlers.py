"""Steps of every request, over any protocol: find the entry, admit the request, read it, run it."""

import itertools
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from rationale.schema.manifest import Manifest
from rationale_service.engine.checks import Faults, tell_all
from rationale_service.engine.dataplane import DataPlane
from rationale_service.engine.features import compared_rows, form_of
from rationale_service.engine.request import InferenceAnswer, InferenceRequest
from rationale_service.errors import InvalidInputError
from rationale_service.models.references.resolver import AnsweringEntry, ReferenceResolver
from rationale_service.observability.context import current
from rationale_service.observability.metrics import CANARY, DEFAULT
from rationale_service.repository.entry import Entry
from rationale_service.repository.registry import Canary, ModelRegistry
from rationale_service.security.keys import AUDIT, Scopes, needed_by_entry
from rationale_service.tensors import Tensors

# Features of Triton that the gateway does not offer, and their replacements.
NOT_OFFERED = {
    "shared memory": "shared memory is not supported: send the tensors themselves, raw (raw_input_contents)",
    "trace settings": "tracing is an operator's setting (RATIONALE_TRACE_ENDPOINT)",
    "log settings": "logging is an operator's setting (RATIONALE_LOG_LEVEL)",
}

_WARNED = 10  # rows that an answer warns about
T = TypeVar("T")


class BodyReader(Protocol):
    """Function that reads and decodes a body until a deadline (event loop's clock) and applies `then` to it.

    One thread does all of this for a large body: nothing large is kept between two steps.
    """

    def __call__(self, deadline_s: float, then: Callable[[InferenceRequest], T], /) -> Awaitable[T]: ...


@dataclass(frozen=True)
class Verb:
    """The parts of a request's prologue that depend on its verb.

    Attributes:
        find: returns the entry that will probably answer, from the request's path alone.
        inputs: returns the input tensors for the entry that answers.
        choose: returns the entry that answers, from path and body; None for the result of `find`.
        scopes: scopes, one of which the caller needs; None for the entry's own.
        keeps_instances: True to keep the rows as sent beside their tensors.
    """

    find: Callable[[ModelRegistry, str, str | None], Entry]
    inputs: Callable[[ModelRegistry, Entry, InferenceRequest], Tensors]
    choose: Callable[[ModelRegistry, "InferenceCall", Entry, InferenceRequest], Entry] | None = None
    scopes: Scopes | None = None
    keeps_instances: bool = False


@dataclass(frozen=True)
class InferenceCall:
    """A request before its body is read.

    Attributes:
        timeout_s: time that its caller waits.
    """

    verb: Verb
    model: str
    version: str | None = None
    timeout_s: float | None = None


@dataclass(frozen=True)
class AdmittedRequest:
    """An admitted request, ready to run.

    Attributes:
        entry: entry that answers it, unless its references choose another.
        inputs: inputs of the entry, and any references sent with them.
        deadline_s: deadline on the event loop's clock.
    """

    request: InferenceRequest
    entry: Entry
    inputs: Tensors
    deadline_s: float


async def open_request(plane: DataPlane, call: InferenceCall, read: BodyReader) -> AdmittedRequest:
    """Wait until the models are loaded, admit the request, then read it.

    The body is read only if the entry that will probably answer has room in its queue.

    Raises:
        ServiceError: if `read`, `ModelRegistry`, `DataPlane` or the verb raises it.
        ForbiddenError: if the caller may not use this entry.
    """
    verb, deadline_s = call.verb, plane.deadline(call.timeout_s)
    await plane.loaded(deadline_s)
    registry = plane.repository
    likely = verb.find(registry, call.model, call.version)
    plane.admit(likely, deadline_s)

    def understood(request: InferenceRequest) -> AdmittedRequest:
        entry = likely if verb.choose is None else verb.choose(registry, call, likely, request)
        note(entry, 0 if request.instances is None else len(request.instances.rows), verb.scopes)
        inputs = verb.inputs(registry, entry, request)
        end_s = deadline_s
        if request.timeout_s is not None:
            end_s = min(end_s, plane.deadline(request.timeout_s))
        if not verb.keeps_instances:
            request = replace(request, instances=None)
        return AdmittedRequest(request, entry, inputs, end_s)

    return await read(deadline_s, understood)


class RecordedInstances(Protocol):
    """Function that returns the instances of recorded decisions of a model, by their ids."""

    def __call__(self, decisions: Sequence[str], model: str) -> Awaitable[Sequence[Mapping[str, Any]]]: ...


class InferenceHandler:
    """Handler of requests for predictions and explanations."""

    def __init__(self, plane: DataPlane, references: ReferenceResolver, recorded: RecordedInstances) -> None:
        self.plane = plane
        self._references = references
        self._recorded = recorded

    async def answer(self, call: InferenceCall, read: BodyReader) -> InferenceAnswer:
        """Run a request on the entry that it names, or on that entry with the request's references.

        Raises:
            ServiceError: if `open_request`, `DataPlane` or `ReferenceResolver` raises it.
        """
        admitted = await open_request(self.plane, call, read)
        chosen = await self._chosen(admitted)
        request, entry = admitted.request, chosen.entry
        note(entry, next((array.shape[0] for array in chosen.inputs.values() if array.ndim), 0))
        tensors = await self.plane.infer(entry, chosen.inputs, request.outputs, admitted.deadline_s)
        version = call.version or entry.version
        explainer = self.plane.repository.explainer_name(admitted.entry)
        context = current()
        is_split = context is not None and context.arm is not None
        drift = self.plane.backend.drift(entry)
        manifest = self.plane.repository.manifest_of(entry)
        warnings = () if manifest is None else _warnings(manifest, chosen.inputs)
        return InferenceAnswer(
            request,
            call.model,
            version,
            entry,
            tensors,
            explainer,
            chosen.references,
            is_split,
            drift,
            warnings,
        )

    async def _chosen(self, admitted: AdmittedRequest) -> AnsweringEntry:
        entry, inputs, name = admitted.entry, admitted.inputs, admitted.request.reference_set
        if admitted.request.compare_with is not None:
            inputs = inputs | await self._partners(entry, admitted.request.compare_with)
        if name is None and not _may_bring_references(entry, inputs):
            return AnsweringEntry(entry, inputs)
        return await self._references.choose(self.plane, entry, inputs, name, admitted.deadline_s)

    async def _partners(self, entry: Entry, decisions: Sequence[str]) -> Tensors:
        """Return the rows of recorded decisions, as a request brings rows to compare with."""
        manifest = entry.manifest
        if manifest is None:
            raise InvalidInputError(f"compare_with: '{entry.name}' has no explanation")
        context, faults = current(), Faults()
        if context is not None:
            context.caller.require(AUDIT)
        form = form_of(entry, manifest)
        rows = [
            {name: value for name, value in instance.items() if name in form.allowed_keys}
            for instance in await self._recorded(decisions, manifest.model)
        ]
        tensors = compared_rows(form, manifest, rows, faults)
        faults.report()
        return tensors


def _warnings(manifest: Manifest, inputs: Tensors) -> tuple[str, ...]:
    """Return warnings about the first rows that hold texts unknown to the model."""
    return tuple(itertools.islice(manifest.warned_rows(inputs), _WARNED))


def _may_bring_references(entry: Entry, inputs: Tensors) -> bool:
    """Tell whether a request may bring references: its entry takes them, or it has extra inputs."""
    if entry.manifest is None:
        return False
    return entry.manifest.open_references is not None or len(inputs) != len(entry.inputs)


def _explaining(registry: ModelRegistry, model: str, version: str | None) -> Entry:
    """Return the default explainer, or a model that has none. Raises UnknownModelError."""
    entry = registry.entry(model, version)
    return registry.default_explainer(entry) or entry


def _infers(registry: ModelRegistry, call: InferenceCall, named: Entry, request: InferenceRequest) -> Entry:
    """Return the named entry, or the explainer that the request chooses if the entry explains.

    Raises:
        InvalidInputError: if the request names an explainer or references, but the entry only predicts.
        UnknownResourceError: if the model has no such explainer.
    """
    if named.manifest is not None:
        return _explains(registry, call, named, request)
    for name in ("explainer", "reference_set", "compare_with"):
        if getattr(request, name) is not None:
            raise InvalidInputError(
                f"'{name}' applies to explain requests, and '{named.name}' is a plain model: use its verb "
                f"explain, or '{named.name}_explain'"
            )
    return named


def _explains(
    registry: ModelRegistry, call: InferenceCall, default: Entry, request: InferenceRequest
) -> Entry:
    """Return the explainer that the request chooses.

    Raises:
        NotExplainableError: if the model has no explainer.
        UnknownResourceError: if the model has no such explainer.
    """
    if default.manifest is not None and request.explainer is None:
        canary_and_entry = registry.canary(call.model, default)
        return default if canary_and_entry is None else _draw_explainer(canary_and_entry, default, request)
    return registry.explainer(call.model, call.version, request.explainer)


def _draw_explainer(
    canary_and_entry: tuple[Canary, Entry], default: Entry, request: InferenceRequest
) -> Entry:
    """Return the default or the canary; a repeated request gets the same one again.

    The id in its body identifies a request, or else the header x-request-id.
    """
    context, (canary, entry) = current(), canary_and_entry
    key = request.id or (secrets.token_hex(8) if context is None else context.request_id)
    takes = canary.takes(default.explained_model, key)
    if context is not None:
        context.arm = CANARY if takes else DEFAULT
    return entry if takes else default


def note(entry: Entry, rows: int, needed: Scopes | None = None) -> None:
    """Note the entry and rows of the running request, and check its caller's scopes.

    Args:
        needed: scopes, one of which its caller needs; None for the entry's own.

    Raises:
        ForbiddenError: if the caller has none of them, or may not use this model.
    """
    context = current()
    if context is not None:
        context.about(entry, rows)
        context.caller.require(needed_by_entry(entry) if needed is None else needed)
        context.caller.require_model(entry.explained_model)


def _inputs(registry: ModelRegistry, entry: Entry, request: InferenceRequest) -> Tensors:
    """Return the inputs for `entry`. Raise InvalidInputError, which lists all faults of the request."""
    if request.instances is not None:
        manifest = registry.manifest_of(entry)
        return request.instances.tensors(entry, manifest, request.faults)
    if request.faults:
        missing = registry.takes_missing(entry)
        tell_all(request.faults, entry, request.inputs, request.outputs, missing)
    return request.inputs


INFER = Verb(ModelRegistry.entry, _inputs, _infers)
EXPLAIN = Verb(_explaining, _inputs, _explains)
