"""KServe v1: `{"instances": […]}` in; predictions, and explanations with named features, out."""

from collections.abc import Sequence
from typing import Any

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response
from starlette.routing import Route

from service.api.body import TIMEOUT_HEADER
from service.api.openapi import MODEL_PARAMETER, body_of, header
from service.api.problems import problem_responses
from service.api.schemas import (
    Alive,
    Applicants,
    Decisions,
    Explanations,
    Instances,
    ModelList,
    ModelStatus,
    Predictions,
)
from service.api.v1.codec import (
    decode_decide,
    decode_explain,
    decode_predict,
    encode_explanations,
    predictions,
)
from service.api.v2.routes import JSON, REFUSALS, call_of, plane_of, reader, respond
from service.decisions.decider import DECIDE, Decider
from service.handlers import EXPLAIN, INFER
from service.inference.request import Answer

IDEMPOTENCY_KEY = "Idempotency-Key"

router = APIRouter(prefix="/v1/models", tags=["v1"])

root = APIRouter(tags=["server"])
_PARAMETERS = [MODEL_PARAMETER, header(TIMEOUT_HEADER, "integer", "milliseconds that the caller waits")]
_BODY = {**body_of(Instances), "parameters": _PARAMETERS}
_DECIDE_BODY = {
    **body_of(Applicants),
    "parameters": [
        *_PARAMETERS,
        header(
            IDEMPOTENCY_KEY,
            "string",
            "1 to 255 visible ASCII characters: what was decided under the same key is answered again",
        ),
    ],
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
    responses=problem_responses(404, 503),
)
async def status(request: Request, model: str) -> ModelStatus:
    plane = plane_of(request)
    entry = plane.repository.entry(model)
    explainer = plane.repository.default_explainer(entry)
    manifest = None if explainer is None else explainer.manifest
    names = {item.tensor.name: item.feature_names for item in manifest.explained} if manifest else {}
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


async def predict(request: Request) -> Response:
    return await respond(request, decode_predict, _predictions, JSON, verb=INFER)


async def explain(request: Request) -> Response:
    return await respond(request, decode_explain, _explanations, JSON, verb=EXPLAIN)


async def decide(request: Request) -> Response:
    """Answered when the decisions are on the disk."""
    decider: Decider = request.app.state.decider
    read = reader(request, decode_decide, JSON)
    call = call_of(request, DECIDE)
    given = request.headers.getlist(IDEMPOTENCY_KEY)
    key = ", ".join(given) if given else None
    return _json({"decisions": await decider.decide(call, read, key)})


inference = [
    Route("/v1/models/{model}:predict", predict, methods=["POST"]),
    Route("/v1/models/{model}:explain", explain, methods=["POST"]),
    Route("/v1/models/{model}:decide", decide, methods=["POST"]),
]


def documented() -> APIRouter:
    """For the OpenAPI document, as v2's."""
    router = APIRouter(tags=["v1"])
    router.post(
        "/v1/models/{model}:predict",
        summary="Predict",
        operation_id="v1_predict",
        response_model=Predictions,
        responses=problem_responses(*REFUSALS),
        openapi_extra=_BODY,
    )(predict)
    router.post(
        "/v1/models/{model}:explain",
        summary="Predict and explain",
        operation_id="v1_explain",
        description="One explanation per instance. `explained_value` = `base_value` + the sum of "
        "`attributions` + `completeness_gap`, as far as the method has these. With several targets an "
        'explanation is `{"targets": […]}`. `references`, or `reference_set`, choose what the instances are '
        "compared with. `explainer` says what explained.",
        response_model=Explanations,
        responses=problem_responses(*REFUSALS),
        openapi_extra=_BODY,
    )(explain)
    router.post(
        "/v1/models/{model}:decide",
        summary="Decide, with principal reasons",
        operation_id="v1_decide",
        description="One decision per instance, by the decision profile that the model was compiled with. It "
        "is written to the audit trail before it is answered. Each row is run by itself, so that the same "
        "instance always gets the same numbers. Where one row has no reasons that could be given, nothing is "
        "decided (422). Features that only a knock-out looks at stand in the instances too.",
        response_model=Decisions,
        responses=problem_responses(*REFUSALS, 409),
        openapi_extra=_DECIDE_BODY,
    )(decide)
    return router


def _predictions(answer: Answer) -> Response:
    return _json({"predictions": predictions(answer.entry.output_names, answer.tensors)})


def _explanations(answer: Answer) -> Response:
    return _json(encode_explanations(answer))


def _as_list(names: Sequence[str] | None) -> list[str] | None:
    return None if names is None else list(names)


def _json(content: dict[str, Any]) -> Response:
    return Response(orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY), media_type=JSON)
