"""`:decide` over gRPC: `ModelInfer` on `NAME:decide`, like `POST /v1/models/NAME:decide` over HTTP.

One input, `instances`: BYTES [N], each the JSON object of a row. A second may be their `application_ids`:
BYTES [N], empty for none. One output, `decisions`: BYTES [N], each a decision as JSON. Any client of the Open
Inference Protocol can send and read them.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import numpy as np
import orjson
from tritonclient.grpc import service_pb2 as pb

from rationale_service.decisions.decider import DECIDE, Decider
from rationale_service.engine.checks import Faults
from rationale_service.engine.large_requests import OffLoop, parse_json
from rationale_service.engine.request import InferenceRequest, timeout_of
from rationale_service.errors import InvalidInputError, MalformedError
from rationale_service.handlers import InferenceCall
from rationale_service.protocols.grpc.codec import inputs_of, parameters_of
from rationale_service.protocols.instances import (
    DECISION_BYTES,
    MOST_DECISIONS,
    check_rows,
    decide_request,
    note_duplicates,
)
from rationale_service.tensors import to_binary

SUFFIX = ":decide"
INSTANCES, DECISIONS, APPLICATIONS = "instances", "decisions", "application_ids"
KEY = "idempotency_key"
T = TypeVar("T")


async def decide(
    decider: Decider,
    off_loop: OffLoop,
    most_json_bytes: int,
    request: pb.ModelInferRequest,
    left_s: float | None,
) -> pb.ModelInferResponse:
    """Decide the instances of a request; answer after the decisions are on the disk.

    Args:
        left_s: seconds until the call's own deadline.

    Raises:
        ServiceError: if `Decider.decide` raises it, or the request is invalid.
    """
    key = parameters_of(request.parameters).get(KEY)
    if not isinstance(key, str | None):
        raise MalformedError(f"parameters.{KEY} must be a string")

    async def read(deadline_s: float, then: Callable[[InferenceRequest], T]) -> T:
        size = request.ByteSize()
        return await off_loop.run(size, lambda: then(_decode(request, most_json_bytes)), deadline_s)

    model = request.model_name.removesuffix(SUFFIX)
    call = InferenceCall(DECIDE, model, request.model_version or None, timeout_s=left_s)
    decisions = await decider.decide(call, read, key)

    def written() -> bytes:
        texts = [orjson.dumps(decision, option=orjson.OPT_SERIALIZE_NUMPY) for decision in decisions]
        return to_binary(np.array(texts, object))

    raw = await off_loop.run(len(decisions) * DECISION_BYTES, written)
    answer = pb.ModelInferResponse(
        model_name=request.model_name,
        model_version=request.model_version,
        id=request.id,
        raw_output_contents=[raw],
    )
    answer.outputs.add(name=DECISIONS, datatype="BYTES", shape=[len(decisions)])
    return answer


def _decode(request: pb.ModelInferRequest, most_json_bytes: int) -> InferenceRequest:
    """Decode instances. Raises as v1's `decode_decide`."""
    faults, options = Faults(), parameters_of(request.parameters)
    tensors = inputs_of(request, faults)
    faults.report()
    instances, ids = tensors.pop(INSTANCES, None), tensors.pop(APPLICATIONS, None)
    is_list = [
        array is not None and array.dtype.kind == "O" and array.ndim == 1 for array in (instances, ids)
    ]
    if instances is None or not is_list[0] or tensors or is_list[1] != (ids is not None):
        raise InvalidInputError(
            f"{SUFFIX} takes one input, '{INSTANCES}': BYTES [N], each the JSON object of a row, such as "
            f"{{\"income\": 58000}}, and optionally '{APPLICATIONS}': BYTES [N]"
        )
    if unknown := [output.name[:80] for output in request.outputs if output.name != DECISIONS]:
        faults.note(f"unknown output {unknown}: {SUFFIX} gives '{DECISIONS}'")
    if len(instances) > MOST_DECISIONS:
        check_rows(INSTANCES, instances.tolist(), MOST_DECISIONS)
    body = b"[" + b",".join(instances.tolist()) + b"]"
    rows = parse_json(body, most_json_bytes)
    if len(rows) != len(instances):
        raise MalformedError(f"each element of '{INSTANCES}' must be one JSON object")
    check_rows(INSTANCES, rows, MOST_DECISIONS)
    note_duplicates(body, rows, faults)
    if ids is not None:
        options = {**options, APPLICATIONS: [_text(i, each) for i, each in enumerate(ids)]}
    decoded = decide_request(options, rows, faults)
    return replace(decoded, id=request.id, timeout_s=timeout_of(options.get("timeout")))


def _text(i: int, value: bytes) -> str | None:
    try:
        return value.decode() or None
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"{APPLICATIONS}[{i}] is not UTF-8") from error
