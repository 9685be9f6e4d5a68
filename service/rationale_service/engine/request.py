"""A decoded request for a prediction or an explanation, and its answer, in any protocol."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from rationale.errors import near
from rationale_service.engine.checks import Faults
from rationale_service.engine.features import RequestRows
from rationale_service.errors import InvalidInputError, MalformedError
from rationale_service.repository.entry import Entry
from rationale_service.tensors import DTYPES, Tensors, bytes_of

# Limits of numpy's shapes; the size of the body limits the actual data.
_MAX_RANK = 32
_MAX_SIZE = 1 << 48
_SHARED_MEMORY = "shared_memory_region"
_CHOICES = ("explainer", "reference_set", "compare_with")
_PARAMETERS = frozenset((*_CHOICES, "timeout", "binary_data_output", "priority", "sequence_id"))
_MOST_UNKNOWN, _LONGEST_OPTION = 20, 40  # unknown options that are compared; characters of one


@dataclass(frozen=True)
class InferenceRequest:
    """A decoded request. `outputs` None asks for all, `explainer` and `reference_set` None for the default.

    Attributes:
        inputs: valid input tensors; `faults` has the faults of the others.
        instances: rows by names of features, instead of `inputs`.
        compare_with: ids of recorded decisions, each the only reference of a row; None for none.
        options: values of the options of a decision by name, such as recourse: True.
        application_ids: lender's own ids of a decision's rows; empty without any.
        dry_run: True to decide without recording the decision.
        timeout_s: time that the caller waits.
        binary: exceptions from `binary_by_default`, {output: True for binary data}.
    """

    inputs: Tensors = field(default_factory=dict)
    faults: Faults = field(default_factory=Faults)
    instances: RequestRows | None = None
    outputs: tuple[str, ...] | None = None
    timeout_s: float | None = None
    explainer: str | None = None
    reference_set: str | None = None
    compare_with: tuple[str, ...] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    application_ids: tuple[str | None, ...] = ()
    dry_run: bool = False
    id: str = ""
    binary_by_default: bool = False
    binary: Mapping[str, bool] = field(default_factory=dict)

    def wants_binary(self, output: str) -> bool:
        return self.binary.get(output, self.binary_by_default)


@dataclass(frozen=True)
class InferenceAnswer:
    """The answer to a request.

    Attributes:
        model: model's name in the request; so `version`, if the request named one.
        entry: entry that computed the answer.
        tensors: outputs by name, in the requested order.
        explainer: name of the model's explainer; None if a model answers, or the explainer has no name.
        references: digest of the reference set that the request brought or named.
        is_split: True if another explainer answers other such requests.
        drift: drift of `entry`, if it is served in spite of one; see `Backend.drift`.
        warnings: warnings about rows with texts unknown to the model.
    """

    request: InferenceRequest
    model: str
    version: str
    entry: Entry
    tensors: Tensors
    explainer: str | None = None
    references: str | None = None
    is_split: bool = False
    drift: float | None = None
    warnings: tuple[str, ...] = ()

    @property
    def json_bytes(self) -> int:
        """Size of the tensors that are answered as JSON."""
        wants_binary = self.request.wants_binary
        return sum(bytes_of(array) for name, array in self.tensors.items() if not wants_binary(name))

    @property
    def identity(self) -> dict[str, str]:
        """Identity of an explanation: the method, the explained output, digests, and any drift and warnings.

        Empty for the answer of a plain model without drift or warnings.
        """
        manifest = self.entry.manifest
        faults = {} if self.drift is None else {"drift": f"{self.drift:.3g}"}
        if self.warnings:
            faults["warning"] = "; ".join(self.warnings)
        if manifest is None:
            return faults
        identity = {
            "method": manifest.method.name,
            "explanation": manifest.digests.explanation,
            "explained_output": manifest.explained_output,
            **faults,
        }
        if self.is_split and self.explainer is not None:
            identity["explainer"] = self.explainer
        return identity if self.references is None else {**identity, "references": self.references}


def check_parameters(name: str, parameters: Mapping[str, Any]) -> None:
    """Raise InvalidInputError if an input or output requests an extension that is not offered."""
    if _SHARED_MEMORY in parameters:
        raise InvalidInputError(f"'{name[:80]}': shared memory is not supported; send the data itself")
    if parameters.get("classification"):
        raise InvalidInputError(f"output '{name[:80]}': the classification extension is not supported")


def note_duplicate(name: str, faults: Faults) -> None:
    """Note the fault of a second input of the same name."""
    faults.note(f"input '{name[:80]}' is given twice", name)


def check_form(name: str, datatype: str, shape: Sequence[int]) -> None:
    """Raise InvalidInputError if no tensor can have this datatype and shape."""
    if datatype not in DTYPES:
        raise InvalidInputError(
            f"input '{name[:80]}': datatype '{datatype[:20]}' must be one of {', '.join(DTYPES)}"
        )
    if len(shape) > _MAX_RANK:
        raise InvalidInputError(f"input '{name[:80]}': shape {list(shape[:8])} is too large")
    if min(shape, default=0) < 0:
        raise InvalidInputError(f"input '{name[:80]}': shape {list(shape)} has a negative size")
    if math.prod([size or 1 for size in shape]) > _MAX_SIZE:
        raise InvalidInputError(f"input '{name[:80]}': shape {list(shape)} is too large")


def timeout_of(timeout: Any) -> float | None:
    """Convert the request parameter `timeout`, in microseconds, → seconds; None and 0 set no limit.

    Raises:
        MalformedError: if it is no number of microseconds.
    """
    if timeout is None or timeout == 0:
        return None
    if type(timeout) is not int or timeout < 0:
        raise MalformedError("parameters.timeout must be a number of microseconds")
    return timeout / 1e6


def choices_of(parameters: Mapping[str, Any], faults: Faults) -> dict[str, Any]:
    """Return the fields of an InferenceRequest that the parameters choose: the explainer and the references.

    Raises:
        MalformedError: if one is no name, or `compare_with` no text of ids, separated by commas.
    """
    explainer, reference_set, ids = (name_of(parameters, name) for name in _CHOICES)
    if unknown := [name for name in parameters if name not in _PARAMETERS]:  # tritonclient sends known ones
        note_misspelt(unknown, _CHOICES, faults)
    compare_with = None if ids is None else tuple(part.strip() for part in ids.split(","))
    return dict(zip(_CHOICES, (explainer, reference_set, compare_with), strict=True))


def note_misspelt(unknown: Iterable[str], names: Collection[str], faults: Faults) -> None:
    """Note unknown options with nearly one of `names`: the request would be answered as if without it."""
    for option in islice(unknown, _MOST_UNKNOWN):
        if meant := near(option[:_LONGEST_OPTION], names):
            faults.note(f"unknown option '{option[:_LONGEST_OPTION]}'{meant}")


def name_of(parameters: Mapping[str, Any], key: str) -> str | None:
    """Return the name in the request parameter `key`, or None.

    Raises:
        MalformedError: if it is no name.
    """
    name = parameters.get(key)
    if name is not None and not (isinstance(name, str) and name):
        raise MalformedError(f"{key} must be a name")
    return name
