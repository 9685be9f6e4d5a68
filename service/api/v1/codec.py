"""v1's messages: instances, by the names of features, in; predictions and named attributions out."""

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import orjson
from starlette.requests import Request

from compiler.manifest import Manifest
from service.api.body import most_json
from service.errors import MalformedError, NotExplainableError, TooLargeError
from service.faults import Faults
from service.inference.features import Instances, unshared
from service.inference.request import Answer, InferenceRequest, name_of, parse_json
from service.tensors import Array, Tensors

_NO_INSTANCES = 'the body must be an object with a list: {"instances": [ … ]}'

_MOST_ROWS = 100_000
_MOST_DECISIONS = 10_000  # each is run, and written, by itself
_MOST_FEATURES = 100_000  # of one instance
_WRITTEN_AT_ONCE = 500

_CHOOSING = ("explainer", "reference_set", "references", "reference_weights")

# An explained tensor in an answer: the output that attributes it, its own name, its features' names.
_Part = tuple[str, str | None, str, tuple[str, ...] | None]


def decode_predict(request: Request, body: bytearray) -> InferenceRequest:
    """Reads instances; members that are of explanations are passed over.

    Raises:
        MalformedError: not JSON, or not a request of this protocol.
        TooLargeError: too many rows, or values.
    """
    message, faults = _message(request, body), Faults()
    return InferenceRequest(instances=Instances(_instances(message, body, faults)), faults=faults)


def decode_explain(request: Request, body: bytearray) -> InferenceRequest:
    """Reads instances, and what they are to be explained by. Raises as `decode_predict`."""
    message, faults = _message(request, body), Faults()
    rows = _instances(message, body, faults)
    given, weights = message.get("references"), message.get("reference_weights")
    is_alone = given is None and weights is not None
    if is_alone or not isinstance(given, list | None) or not isinstance(weights, list | None):
        raise MalformedError(
            "references must be a list of rows as instances is, reference_weights one of numbers"
        )
    return InferenceRequest(
        instances=Instances(rows, given, weights),
        faults=faults,
        explainer=name_of(message, "explainer"),
        reference_set=name_of(message, "reference_set"),
    )


def decode_decide(request: Request, body: bytearray) -> InferenceRequest:
    """Reads instances, each an object. Raises as `decode_predict`."""
    message, faults = _message(request, body, _MOST_DECISIONS), Faults()
    for name in _CHOOSING:
        if message.get(name) is not None:
            faults.note(f"'{name}' is of explanations: a decision's was chosen when the model was compiled")
    stability = message.get("stability")
    if not isinstance(stability, bool | None):
        raise MalformedError("stability must be true or false")
    rows = _instances(message, body, faults)
    for i, row in enumerate(rows):
        if not isinstance(row, dict):
            faults.note(f"instances[{i}] must be an object of features, so that reasons have names")
    return InferenceRequest(instances=Instances(rows), faults=faults, stability=bool(stability))


def predictions(outputs: Sequence[str], tensors: Tensors) -> list[Any]:
    """Per row the output's own row, or {output: row} where there are several. Made for orjson."""
    readable = {name: _readable(tensors[name]) for name in outputs}
    if len(readable) == 1:
        return list(next(iter(readable.values())))
    return [dict(zip(readable, row, strict=True)) for row in zip(*readable.values(), strict=True)]


def explanations(manifest: Manifest, tensors: Tensors) -> Iterator[dict[str, Any]]:
    """Per row one explanation, or {"targets": […]} where T > 1. Made for orjson."""
    rows = len(tensors[manifest.explained_value])
    targets = _targets(manifest, tensors, rows)
    named = unshared({item.tensor.name: item.feature_names for item in manifest.attributed})
    layout = [
        (item.attributions, item.standard_error, item.tensor.name, named.get(item.tensor.name))
        for item in manifest.attributed
    ]
    for i in range(rows):
        row = {name: array[i] for name, array in tensors.items()}
        told = [_explanation(manifest, layout, row, t, targets[i][t]) for t in range(manifest.target_count)]
        yield told[0] if len(told) == 1 else {"targets": told}


def encode_explanations(answer: Answer) -> dict[str, Any]:
    """Made for orjson. Raises NotExplainableError."""
    manifest, tensors = answer.entry.manifest, answer.tensors
    if manifest is None:
        raise NotExplainableError(f"model '{answer.model}' has no explanation")
    identity = answer.identity
    explainer = {"name": answer.explainer, "method": identity["method"], "digest": identity["explanation"]}
    if answer.references is not None:
        explainer["references"] = answer.references
    return {
        "predictions": predictions([spec.name for spec in manifest.outputs], tensors),
        "explanations": _written(explanations(manifest, tensors)),
        "explainer": explainer,
    }


def _written(items: Iterable[Any]) -> orjson.Fragment:
    """A list of them, as JSON: written part by part, for their objects take ten times as much memory."""
    left, parts = iter(items), []
    while part := list(itertools.islice(left, _WRITTEN_AT_ONCE)):
        parts.append(orjson.dumps(part, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1])
    return orjson.Fragment(b"[" + b",".join(parts) + b"]")


def _note_duplicates(body: bytearray, faults: Faults) -> None:
    """Notes each member that an object names twice: most parsers keep the last, silently."""

    def members(pairs: list[tuple[str, Any]]) -> None:
        seen = set()
        for name, _ in pairs:
            if name in seen:
                faults.note(f"feature '{name[:80]}' is given twice")
            seen.add(name)

    try:
        json.loads(body, object_pairs_hook=members)
    except (ValueError, RecursionError) as error:  # valid JSON by now, but this parser has other limits
        raise MalformedError(
            "the body is not valid JSON: a number is too long or the nesting too deep"
        ) from error


def _message(request: Request, body: bytearray, most_rows: int = _MOST_ROWS) -> dict[str, Any]:
    message = parse_json(body, most_json(request))
    if not isinstance(message, dict) or not isinstance(message.get("instances"), list):
        raise MalformedError(_NO_INSTANCES)
    for name in ("instances", "references", "reference_weights"):
        rows = message.get(name)
        if isinstance(rows, list):
            _check_rows(name, rows, most_rows)
    return message


def _check_rows(name: str, rows: list[Any], most: int) -> None:
    """Raises TooLargeError: each row is an object, or some, of Python's before it is part of a tensor."""
    if len(rows) > most:
        raise TooLargeError(f"{name} has {len(rows)} rows, more than {most}: send fewer at a time")
    for i, row in enumerate(rows):
        if isinstance(row, dict) and len(row) > _MOST_FEATURES:
            raise TooLargeError(f"{name}[{i}] has {len(row)} features, more than {_MOST_FEATURES}")


def _instances(message: dict[str, Any], body: bytearray, faults: Faults) -> list[Any]:
    rows: list[Any] = message["instances"]
    objects = [row for row in rows if isinstance(row, dict)]
    # Where there are as many colons as members, none is hidden behind another of its name.
    if objects and body.count(b":") != len(message) + sum(map(len, objects)):
        _note_duplicates(body, faults)
    return rows


def _targets(manifest: Manifest, tensors: Tensors, rows: int) -> list[Sequence[int | str | None]]:
    """[N][T] flat indices; None for 'predicted' where the explained output is not among the answers."""
    if manifest.targets != "predicted":
        return [manifest.targets] * rows
    explained = tensors.get(manifest.explained_output)
    if explained is None:
        return [(None,)] * rows
    return [(int(row.argmax()),) for row in explained.reshape(rows, -1)]


def _explanation(
    manifest: Manifest, layout: Sequence[_Part], row: Tensors, t: int, target: int | str | None
) -> dict[str, Any]:
    """One target of one row; `row` holds [T, …] arrays."""
    scalars = {
        "explained_value": manifest.explained_value,
        "base_value": manifest.base_value,
        "completeness_gap": manifest.completeness_gap,
        "completeness_gap_standard_error": manifest.completeness_gap_standard_error,
    }
    told = {"target": target} | {member: row[name][t] for member, name in scalars.items() if name is not None}
    attributions: dict[str, Any] = {}
    errors: dict[str, Any] = {}
    for attributed, error, tensor, names in layout:
        attributions |= _by_feature(row[attributed][t], tensor, names)
        errors |= _by_feature(row[error][t], tensor, names) if error else {}
    return told | {"attributions": attributions} | ({"standard_errors": errors} if errors else {})


def _by_feature(values: Array, tensor: str, names: Sequence[str] | None) -> dict[str, Any]:
    if not names:
        return {tensor: np.ascontiguousarray(values)}
    return dict(zip(names, values.reshape(-1), strict=True))


def _readable(array: Array) -> Any:
    if array.dtype.kind != "O":
        return np.ascontiguousarray(array)
    decoded = [element.decode(errors="replace") for element in array.reshape(-1)]
    return np.array(decoded, dtype=np.object_).reshape(array.shape).tolist()
