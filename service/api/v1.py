"""KServe v1: `{"instances": […]}` in; predictions, and explanations with named features, out."""

from collections.abc import Sequence
from typing import Any

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response

from compiler.manifest import Manifest
from compiler.open_references import WEIGHTS, references_name
from service.api import v2_codec as oip
from service.api.body import TIMEOUT_HEADER, media_type_of, parse_json, read_body, timeout_header
from service.api.openapi import body_of, header
from service.api.problems import problem_responses
from service.api.schemas import Alive, Explanations, Instances, ModelList, ModelStatus, Predictions
from service.api.v1_codec import Form, explanations, form_of, note_duplicates, predictions, to_tensors
from service.api.v2 import JSON, REFUSALS, plane_of
from service.errors import MalformedError, NotExplainableError
from service.faults import Faults
from service.handlers import likely_explainer
from service.repository.registry import ModelRegistry
from service.tensors import Tensors, from_values

router = APIRouter(prefix="/v1/models", tags=["v1"])

_NO_INSTANCES = 'the body must be an object with a list: {"instances": [ … ]}'
root = APIRouter(tags=["server"])
_BODY = {
    **body_of(Instances),
    "parameters": [header(TIMEOUT_HEADER, "integer", "milliseconds that the caller waits")],
}


@root.get(
    "/",
    summary="Is the process alive?",
    description="As KServe's own servers answer v1 clients.",
    operation_id="alive",
)
async def alive() -> Alive:
    return Alive(status="alive")


@router.get("", summary="The models served here", operation_id="v1_models")
async def models(request: Request) -> ModelList:
    """Explain entries are left out: they are part of the model that they explain."""
    repository = plane_of(request).repository
    return ModelList(
        models=[name for name, entry in repository.entries.items() if not repository.explains_another(entry)]
    )


@router.get(
    "/{model}",
    summary="Is the model ready, and what may be asked of it?",
    operation_id="v1_model",
    responses=problem_responses(404),
)
async def status(request: Request, model: str) -> ModelStatus:
    plane = plane_of(request)
    entry = plane.repository.entry(model)
    manifest = _manifest(plane.repository, model)
    names = {item.tensor.name: item.feature_names for item in manifest.explained} if manifest else {}
    targets: list[int] | str | None = None
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


@router.post(
    "/{model}:predict",
    summary="Predict",
    operation_id="v1_predict",
    response_model=Predictions,
    responses=problem_responses(*REFUSALS),
    openapi_extra=_BODY,
)
async def predict(request: Request, model: str) -> Response:
    plane = plane_of(request)
    entry = plane.repository.entry(model)
    manifest = _manifest(plane.repository, model)
    deadline_s = plane.deadline(timeout_header(request.scope))
    plane.admit(entry, deadline_s)
    message, body = await _read(request, deadline_s)
    faults = Faults()
    inputs = _instances(message, body, form_of(entry, manifest), faults)
    faults.tell()
    answer = await plane.infer(entry, inputs, deadline_s=deadline_s)
    return _json({"predictions": predictions(list(answer.tensors), answer.tensors)})


@router.post(
    "/{model}:explain",
    summary="Predict and explain",
    operation_id="v1_explain",
    description="One explanation per instance. `explained_value` = `base_value` + the sum of `attributions` "
    "+ `completeness_gap`, as far as the method has these. With several targets an explanation is "
    '`{"targets": […]}`. `references`, or `reference_set`, choose what the instances are compared with.',
    response_model=Explanations,
    responses=problem_responses(*REFUSALS),
    openapi_extra=_BODY,
)
async def explain(request: Request, model: str) -> Response:
    plane = plane_of(request)
    likely = likely_explainer(plane.repository, plane.repository.entry(model))
    deadline_s = plane.deadline(timeout_header(request.scope))
    plane.admit(likely, deadline_s)
    message, body = await _read(request, deadline_s)
    entry = plane.repository.explainer(model, None, oip.name_of(message, "explainer"))
    manifest = entry.manifest
    if manifest is None:
        raise NotExplainableError(f"model '{model}' has no explanation")
    form, faults = form_of(entry, manifest), Faults()
    inputs = _instances(message, body, form, faults) | _references(message, manifest, form, faults)
    faults.tell()
    reference_set = oip.name_of(message, "reference_set")
    answer = await plane.infer(entry, inputs, deadline_s=deadline_s, reference_set=reference_set)
    tensors = answer.tensors
    outputs = [spec.name for spec in manifest.outputs]
    return _json(
        {"predictions": predictions(outputs, tensors), "explanations": explanations(manifest, tensors)}
    )


async def _read(request: Request, deadline_s: float) -> tuple[dict[str, Any], bytes | bytearray]:
    """The message, and the bytes it was."""
    media_type_of(request, JSON)
    limit = request.app.state.settings.max_body_bytes
    body = await read_body(request, limit, deadline_s, plane_of(request).budget)
    message = parse_json(body)
    if not isinstance(message, dict):
        raise MalformedError(_NO_INSTANCES)
    return message, body


def _instances(message: dict[str, Any], body: bytes | bytearray, form: Form, faults: Faults) -> Tensors:
    instances = message.get("instances")
    if not isinstance(instances, list):
        raise MalformedError(_NO_INSTANCES)
    if any(isinstance(instance, dict) for instance in instances):
        note_duplicates(body, faults)
    return to_tensors(form, instances, faults)


def _references(message: dict[str, Any], manifest: Manifest, form: Form, faults: Faults) -> Tensors:
    """Those that a request brings, as tensors of the names that OIP has for them."""
    given, weights = message.get("references"), message.get("reference_weights")
    if given is None and weights is None:
        return {}
    if not isinstance(given, list) or not isinstance(weights, list | None):
        raise MalformedError(
            "references must be a list of rows as instances is, reference_weights one of numbers"
        )
    rows = to_tensors(form, given, faults, "references")
    explained = [item.tensor.name for item in manifest.explained if item.tensor.name in rows]
    tensors = {references_name(name): rows[name] for name in explained}
    if weights is not None:
        with faults:
            tensors[WEIGHTS] = from_values(WEIGHTS, "FP64", (len(weights),), weights)
    return tensors


def _manifest(repository: ModelRegistry, model: str) -> Manifest | None:
    try:
        return repository.explainer(model).manifest
    except NotExplainableError:
        return None


def _as_list(names: Sequence[str] | None) -> list[str] | None:
    return None if names is None else list(names)


def _json(content: dict[str, Any]) -> Response:
    return Response(orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY), media_type=JSON)
