"""KServe v1: `{"instances": […]}` in; predictions, explanations with named features, and decisions out."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response

from rationale.schema.manifest import Manifest, unique_names
from rationale.schema.outputs import OUTPUT_KINDS
from rationale_service.decisions.decider import DECIDE
from rationale_service.engine.checks import Faults
from rationale_service.engine.features import RequestRows
from rationale_service.engine.large_requests import parse_json
from rationale_service.engine.request import InferenceAnswer, InferenceRequest, name_of, note_misspelt
from rationale_service.errors import MalformedError, NotExplainableError
from rationale_service.handlers import EXPLAIN, INFER
from rationale_service.protocols.instances import (
    CHOOSING,
    DECISION_BYTES,
    MOST_DECISIONS,
    check_rows,
    decide_request,
    note_duplicates,
)
from rationale_service.protocols.rest.endpoint import (
    JSON,
    REFUSALS,
    TIMEOUT_HEADER,
    call_of,
    gateway_of,
    idempotency_key,
    most_json,
    reader,
    respond,
)
from rationale_service.protocols.rest.openapi import KEY_PARAMETER, MODEL_PARAMETER, body_of, header
from rationale_service.protocols.rest.problems import problem_responses
from rationale_service.protocols.rest.routes import DirectRoute
from rationale_service.protocols.rest.schemas import (
    Alive,
    Applicants,
    Decisions,
    Explanations,
    ModelList,
    ModelStatus,
    Predictions,
)
from rationale_service.protocols.rest.schemas import Instances as InstancesSchema
from rationale_service.security import keys
from rationale_service.security.keys import needs
from rationale_service.tensors import Array, Tensors

_NO_INSTANCES = 'the body must be an object with a list: {"instances": [ … ]}'

_MOST_ROWS = 100_000
_WRITTEN_AT_ONCE = 500

# An explained tensor in an answer: the output that attributes it, its own name, its features' names.
_NamedPart = tuple[Mapping[str, str], str, tuple[str, ...] | None]

router = APIRouter(prefix="/v1/models", tags=["v1"])
inference = APIRouter(prefix="/v1/models", tags=["v1"], route_class=DirectRoute)
root = APIRouter(tags=["server"])
_PARAMETERS = [MODEL_PARAMETER, header(TIMEOUT_HEADER, "integer", "milliseconds that the caller waits")]
_BODY = {**body_of(InstancesSchema), "parameters": _PARAMETERS}
_DECIDE_BODY = {
    **body_of(Applicants),
    "parameters": [
        *_PARAMETERS,
        KEY_PARAMETER,
    ],
}


@root.get(
    "/",
    summary="Is the process alive?",
    description="The same answer as KServe's servers give to v1 clients.",
    operation_id="alive",
)
@needs(keys.NOBODY_NEEDS)
async def alive() -> Alive:
    return Alive(status="alive")


@router.get("", summary="The served models", operation_id="v1_models")
@needs(keys.ANY_KEY)
async def models(request: Request) -> ModelList:
    """Explain entries are left out: they are part of the model that they explain."""
    repository = gateway_of(request).plane.repository
    listed = [
        (name, entry) for name, entry in repository.entries.items() if not repository.explains_another(entry)
    ]
    return ModelList(
        models=[name for name, _ in listed],
        explainable=[name for name, entry in listed if repository.default_explainer(entry) is not None],
    )


@router.get(
    "/{model}",
    summary="Is the model ready, and which features does it take?",
    operation_id="v1_model",
    responses=problem_responses(404, 503),
)
@needs(keys.ANY_KEY)
async def status(request: Request, model: str) -> ModelStatus:
    plane = gateway_of(request).plane
    entry = plane.repository.entry(model)
    explainer = plane.repository.default_explainer(entry)
    manifest = None if explainer is None else explainer.manifest
    names = manifest.feature_names if manifest else {}
    targets: list[int | str] | str | None = None
    if manifest is not None:
        targets = manifest.targets if isinstance(manifest.targets, str) else list(manifest.targets)
    return ModelStatus(
        name=model,
        ready=await plane.ready(entry),
        explainable=manifest is not None,
        method=manifest.method.name if manifest else None,
        targets=targets,
        features={spec.name: _as_list(names.get(spec.name)) for spec in entry.inputs},
    )


@inference.post(
    "/{model}:predict",
    summary="Predict",
    operation_id="v1_predict",
    response_model=Predictions,
    responses=problem_responses(*REFUSALS),
    openapi_extra=_BODY,
)
@needs(keys.needed_by_model)
async def predict(request: Request) -> Response:
    return await respond(request, decode_predict, _predictions, JSON, verb=INFER)


@inference.post(
    "/{model}:explain",
    summary="Predict and explain",
    operation_id="v1_explain",
    description="One explanation per instance. `explained_value` = `base_value` + the sum of "
    "`attributions` + `completeness_gap`, if the method has these. With several targets an explanation is "
    '`{"targets": […]}`. `references` or `reference_set` choose the references; `compare_with` compares each '
    "instance with one row or one recorded decision. `explainer` names the explainer of the answer.",
    response_model=Explanations,
    responses=problem_responses(*REFUSALS),
    openapi_extra=_BODY,
)
@needs(keys.EXPLAIN)
async def explain(request: Request) -> Response:
    return await respond(request, decode_explain, _explanations, JSON, verb=EXPLAIN)


@inference.post(
    "/{model}:decide",
    summary="Decide, with principal reasons",
    operation_id="v1_decide",
    description=(
        "One decision per instance, by the decision profile in the compiled model. The gateway writes it "
        "to the audit trail before it answers. Each row runs by itself, so the same instance always gets "
        "the same numbers. If one row has no reasons that can be given, nothing is decided (422). "
        "Instances also need the features that only knock-out rules read. With `dry_run` the decision has "
        "no id, and nothing is written."
    ),
    response_model=Decisions,
    responses=problem_responses(*REFUSALS, 409),
    openapi_extra=_DECIDE_BODY,
)
@needs(keys.DECIDE)
async def decide(request: Request) -> Response:
    """Answered when the decisions are on the disk."""
    gateway = gateway_of(request)
    read = reader(request, decode_decide, JSON)
    call = call_of(request, DECIDE)
    decisions = await gateway.decider.decide(call, read, idempotency_key(request))
    write, plane = partial(_decisions, decisions), gateway.plane
    return await plane.off_loop.run(len(decisions) * DECISION_BYTES, write, plane.deadline(call.timeout_s))


def _decisions(decisions: Sequence[Any]) -> Response:
    return _json({"decisions": _json_list(decisions)})


def _predictions(answer: InferenceAnswer) -> Response:
    return _json(
        {"predictions": predictions(answer.entry.output_names, answer.tensors), **_known_faults(answer)}
    )


def _known_faults(answer: InferenceAnswer) -> dict[str, Any]:
    """Return an answer's known faults: its drift and warnings."""
    drift = {} if answer.drift is None else {"drift": answer.drift}
    return {**drift, "warnings": list(answer.warnings)} if answer.warnings else drift


def _explanations(answer: InferenceAnswer) -> Response:
    return _json(encode_explanations(answer))


def _as_list(names: Sequence[str] | None) -> list[str] | None:
    return None if names is None else list(names)


def _json(content: dict[str, Any]) -> Response:
    return Response(orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY), media_type=JSON)


# --- messages -------------------------------------------------------------------------------------------


def decode_predict(request: Request, body: bytearray) -> InferenceRequest:
    """Decode instances; note members for explanations as faults.

    Raises:
        MalformedError: if the body is no JSON, or no request of this protocol.
        TooLargeError: if it has too many rows or values.
    """
    message, faults = _message(request, body), Faults()
    for name in CHOOSING:
        if message.get(name) is not None:
            faults.note(f"'{name}' is of explanations, and nothing is explained here: ask `:explain`")
    return InferenceRequest(instances=RequestRows(_instances(message, body, faults)), faults=faults)


def decode_explain(request: Request, body: bytearray) -> InferenceRequest:
    """Decode instances, and the explainer and references for them. Raises as `decode_predict`."""
    message, faults = _message(request, body), Faults()
    rows = _instances(message, body, faults)
    if unknown := [name for name in message if name not in ("instances", *CHOOSING)]:
        note_misspelt(unknown, CHOOSING, faults)
    references, weights = message.get("references"), message.get("reference_weights")
    is_alone = references is None and weights is not None
    if is_alone or not isinstance(references, list | None) or not isinstance(weights, list | None):
        raise MalformedError(
            "references must be a list of rows like instances, and reference_weights a list of numbers"
        )
    partners = message.get("compare_with")
    if not (partners is None or (isinstance(partners, list) and partners)):
        raise MalformedError("compare_with must be a list of decision ids, or a list of rows like instances")
    ids = tuple(partner for partner in partners or () if isinstance(partner, str))
    are_ids = partners is not None and len(ids) == len(partners)
    if ids and not are_ids:
        raise MalformedError(
            "compare_with mixes decision ids and rows: send only ids or only rows in a request"
        )
    return InferenceRequest(
        instances=RequestRows(rows, references, weights, None if are_ids else partners),
        faults=faults,
        explainer=name_of(message, "explainer"),
        reference_set=name_of(message, "reference_set"),
        compare_with=ids if are_ids else None,
    )


def decode_decide(request: Request, body: bytearray) -> InferenceRequest:
    """Decode instances, each an object. Raises as `decode_predict`."""
    message, faults = _message(request, body, MOST_DECISIONS), Faults()
    return decide_request(message, _instances(message, body, faults), faults)


def predictions(outputs: Sequence[str], tensors: Tensors) -> list[Any]:
    """Return per row the output's own row, or {output: row} for several outputs, for orjson."""
    readable = {name: _readable(tensors[name]) for name in outputs}
    if len(readable) == 1:
        return list(next(iter(readable.values())))
    return [dict(zip(readable, row, strict=True)) for row in zip(*readable.values(), strict=True)]


def explanations(manifest: Manifest, tensors: Tensors) -> Iterator[dict[str, Any]]:
    """Yield per row one explanation, or {"targets": […]} if T > 1, for orjson."""
    rows = len(tensors[manifest.explained_value])
    targets = _targets(manifest, tensors, rows)
    named = unique_names({item.tensor.name: item.feature_names for item in manifest.attributed})
    layout = [(item.outputs, item.tensor.name, named.get(item.tensor.name)) for item in manifest.attributed]
    values = manifest.values
    for i in range(rows):
        row = {name: array[i] for name, array in tensors.items()}
        by_target = [
            _explanation(values, layout, row, t, targets[i][t]) for t in range(manifest.target_count)
        ]
        yield by_target[0] if len(by_target) == 1 else {"targets": by_target}


def encode_explanations(answer: InferenceAnswer) -> dict[str, Any]:
    """Encode explanations for orjson. Raises NotExplainableError."""
    manifest, tensors = answer.entry.manifest, answer.tensors
    if manifest is None:
        raise NotExplainableError(f"model '{answer.model}' has no explanation")
    identity = answer.identity
    explainer = {
        "name": answer.explainer,
        "method": identity["method"],
        "digest": identity["explanation"],
        "explained_output": identity["explained_output"],
    }
    if answer.references is not None:
        explainer["references"] = answer.references
    return {
        "predictions": predictions([spec.name for spec in manifest.outputs], tensors),
        "explanations": _json_list(explanations(manifest, tensors)),
        "explainer": explainer,
        **_known_faults(answer),
    }


def _json_list(items: Iterable[Any]) -> orjson.Fragment:
    """Write a list of items as JSON in parts, since their objects take ten times as much memory."""
    remaining, parts = iter(items), []
    while block := list(itertools.islice(remaining, _WRITTEN_AT_ONCE)):
        parts.append(orjson.dumps(block, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1])
    return orjson.Fragment(b"[" + b",".join(parts) + b"]")


def _message(request: Request, body: bytearray, most_rows: int = _MOST_ROWS) -> dict[str, Any]:
    message = parse_json(body, most_json(request))
    if not isinstance(message, dict) or not isinstance(message.get("instances"), list):
        raise MalformedError(_NO_INSTANCES)
    for name in ("instances", "references", "reference_weights", "compare_with"):
        rows = message.get(name)
        if isinstance(rows, list):
            check_rows(name, rows, most_rows)
    return message


def _instances(message: dict[str, Any], body: bytearray, faults: Faults) -> list[Any]:
    rows: list[Any] = message["instances"]
    note_duplicates(body, rows, faults, beside=len(message))
    return rows


def _targets(manifest: Manifest, tensors: Tensors, rows: int) -> list[Sequence[int | str | None]]:
    """Return [N][T] flat indices; None for 'predicted' if the answer lacks the explained output."""
    if manifest.targets != "predicted":
        return [manifest.targets] * rows
    explained = tensors.get(manifest.explained_output)
    if explained is None:
        return [(None,)] * rows
    return [(int(row.argmax()),) for row in explained.reshape(rows, -1)]


def _explanation(
    values: Mapping[str, str], layout: Sequence[_NamedPart], row: Tensors, t: int, target: int | str | None
) -> dict[str, Any]:
    """Return the explanation of one target of one row; `row` has [T, …] arrays."""
    explanation = {"target": target} | {kind: row[name][t] for kind, name in values.items()}
    for outputs, tensor, names in layout:
        for kind, name in outputs.items():
            by_feature = explanation.setdefault(OUTPUT_KINDS[kind].member, {})
            by_feature |= _values_by_feature(row[name][t], tensor, names)
    return explanation


def _values_by_feature(values: Array, tensor: str, names: Sequence[str] | None) -> dict[str, Any]:
    if not names:
        return {tensor: np.ascontiguousarray(values)}
    return dict(zip(names, values.reshape(-1), strict=True))


def _readable(array: Array) -> Any:
    if array.dtype.kind != "O":
        return np.ascontiguousarray(array)
    decoded = [element.decode(errors="replace") for element in array.reshape(-1)]
    return np.array(decoded, dtype=np.object_).reshape(array.shape).tolist()
