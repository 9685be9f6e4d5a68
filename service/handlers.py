"""The way of a request, by whichever protocol it came: what answers it is found, asked, and identified."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from compiler.manifest import Manifest
from service.errors import InvalidInputError
from service.inference.dataplane import DataPlane
from service.inference.request import Answer, InferenceRequest
from service.inference.validation import tell_all
from service.observability.context import current
from service.references.resolver import ReferenceResolver
from service.repository.entry import Entry
from service.repository.registry import ModelRegistry
from service.security.keys import Scopes, needed_by_entry
from service.tensors import Tensors


@dataclass(frozen=True)
class Call:
    """What is known of a request before its body is read.

    Attributes:
        explains: whether it asks for the model's explanation; else for what is called `model`, which may be
            an explanation too (`NAME_explain`).
        timeout_s: how long its caller waits.
    """

    model: str
    version: str | None = None
    explains: bool = False
    timeout_s: float | None = None


# What Triton offers by either protocol and a gateway does not, and what to do instead.
NOT_OFFERED = {
    "shared memory": "shared memory is not offered: send the tensors themselves, raw (raw_input_contents)",
    "trace settings": "tracing is an operator's setting (RATIONALE_TRACE_ENDPOINT)",
    "log settings": "logging is an operator's setting (RATIONALE_LOG_LEVEL)",
}

T = TypeVar("T")


class Read(Protocol):
    """Reads and decodes the body, until a time on the event loop's clock, and gives what `then` makes of it.

    Where the body is large that is done in a thread, all of it: between two steps nothing large is held.
    """

    def __call__(self, deadline_s: float, then: Callable[[InferenceRequest], T]) -> Awaitable[T]: ...


class Handler:
    """Answers requests for predictions and explanations."""

    def __init__(self, plane: DataPlane, references: ReferenceResolver) -> None:
        self.plane = plane
        self._references = references

    async def answer(self, call: Call, read: Read) -> Answer:
        """The body is read if the entry that will probably answer has a place for the request.

        Raises:
            ServiceError: what `read`, `ModelRegistry`, `DataPlane` and `ReferenceResolver` raise.
            ForbiddenError: the caller may not ask this entry.
        """
        plane = self.plane
        deadline_s = plane.deadline(call.timeout_s)
        await plane.loaded(deadline_s)
        registry = plane.repository
        likely = _likely_entry(registry, call)
        plane.admit(likely, deadline_s)

        def understood(request: InferenceRequest) -> tuple[InferenceRequest, Entry, Tensors]:
            entry = _entry_asked_for(registry, call, likely, request)
            note(entry, 0)
            return replace(request, instances=None), entry, _inputs(registry, entry, request)

        request, entry, inputs = await read(deadline_s, understood)
        if request.timeout_s is not None:
            deadline_s = min(deadline_s, plane.deadline(request.timeout_s))
        chosen = await self._references.choose(plane, entry, inputs, request.reference_set, deadline_s)
        answering = chosen.entry
        note(answering, next((array.shape[0] for array in chosen.inputs.values() if array.ndim), 0))
        tensors = await plane.infer(answering, chosen.inputs, request.outputs, deadline_s)
        version = call.version or answering.version
        explainer = registry.explainer_name(entry)
        return Answer(request, call.model, version, answering, tensors, explainer, chosen.references)


def _likely_entry(registry: ModelRegistry, call: Call) -> Entry:
    """What answers a call unless its body chooses an explainer. Raises UnknownModelError."""
    entry = registry.entry(call.model, call.version)
    return registry.default_explainer(entry) or entry if call.explains else entry


def _entry_asked_for(registry: ModelRegistry, call: Call, likely: Entry, request: InferenceRequest) -> Entry:
    """
    Raises:
        InvalidInputError: the entry only predicts, so that there is nothing to choose.
        NotExplainableError: the model has no explainer.
        UnknownResourceError: the model has no such explainer.
    """
    if likely.manifest is not None and request.explainer is None:
        return likely
    if likely.manifest is not None or call.explains:
        return registry.explainer(call.model, call.version, request.explainer)
    for name in ("explainer", "reference_set"):
        if getattr(request, name) is not None:
            raise InvalidInputError(
                f"parameters.{name} is of explanations, but '{likely.name}' only predicts: ask its verb "
                f"explain, or '{likely.name}_explain'"
            )
    return likely


def note(entry: Entry, rows: int, needed: Scopes | None = None) -> None:
    """Notes what the running request is for.

    Args:
        needed: the scopes of which its caller needs one; None for those of the entry.

    Raises:
        ForbiddenError: the caller may not ask for that.
    """
    context = current()
    if context is not None:
        context.about(entry, rows)
        context.caller.require(needed_by_entry(entry) if needed is None else needed)


def _inputs(registry: ModelRegistry, entry: Entry, request: InferenceRequest) -> Tensors:
    """What `entry` is fed. Raises InvalidInputError for all that was wrong when the request was read."""
    if request.instances is not None:
        manifest = entry.manifest or _manifest_of(registry, entry)
        return request.instances.tensors(entry, manifest, request.faults)
    if request.faults:
        missing = registry.takes_missing(entry)
        tell_all(request.faults, entry, request.inputs, request.outputs, missing)
    return request.inputs


def _manifest_of(registry: ModelRegistry, entry: Entry) -> Manifest | None:
    """What knows the names of a plain model's features."""
    explainer = registry.default_explainer(entry)
    return None if explainer is None else explainer.manifest
