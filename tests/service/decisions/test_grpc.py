"""`:decide` over gRPC: the decisions of HTTP, by unchanged clients of the Open Inference Protocol."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import InferInput
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.aio import InferenceServerClient

from rationale_service.decisions.audit.ledger import open_ledger
from rationale_service.decisions.audit.trail import RecordedDecision
from rationale_service.settings import Settings
from tests.service.decisions.decided import INSTANCES, Decided
from tests.service.grpc_end import grpc_end, refused
from tests.service.security.test_keys import key_file


@pytest.fixture
def settings(decided: Decided, tmp_path: Path) -> Settings:
    """The gateway's repository, with a trail of its own."""
    return Settings(repository=decided.settings.repository, state=tmp_path / "state")


def request(
    model: str, rows: Sequence[Mapping[str, Any] | bytes], name: str = "instances", **parameters: str | bool
) -> pb.ModelInferRequest:
    elements = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
    contents = pb.InferTensorContents(bytes_contents=elements)
    tensor = pb.ModelInferRequest.InferInputTensor(
        name=name, datatype="BYTES", shape=[len(rows)], contents=contents
    )
    kinds = {bool: "bool_param", str: "string_param"}
    parameters_ = {key: pb.InferParameter(**{kinds[type(value)]: value}) for key, value in parameters.items()}
    return pb.ModelInferRequest(model_name=model, id="7", inputs=[tensor], parameters=parameters_)


def decisions(answer: pb.ModelInferResponse) -> list[dict[str, Any]]:
    (output,), (raw,) = answer.outputs, answer.raw_output_contents
    assert (output.name, output.datatype, answer.id) == ("decisions", "BYTES", "7")
    collected = []
    while raw:
        size = int.from_bytes(raw[:4], "little")
        collected.append(json.loads(raw[4 : 4 + size]))
        raw = raw[4 + size :]
    assert list(output.shape) == [len(collected)]
    return collected


def recorded(settings: Settings) -> list[RecordedDecision]:
    ledger = open_ledger(settings)
    try:
        return list(ledger.in_order())
    finally:
        ledger.close()


def without_ids(decision: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in decision.items() if name != "id"}


@pytest.mark.parametrize("name", ["net", "once", "margin", "words", "gaps", "credit"])
async def test_the_decisions_are_those_of_http(decided: Decided, settings: Settings, name: str) -> None:
    async with grpc_end(settings) as end:
        answered = decisions(await end.stub.ModelInfer(request(f"{name}:decide", INSTANCES[name])))
    assert list(map(without_ids, answered)) == [
        without_ids(decided.answers[decision_id]) for decision_id in decided.ids[name]
    ]
    by_id = {decision_id.id: decision_id for decision_id in recorded(settings)}
    assert [by_id[decision_id["id"]].instance for decision_id in answered] == INSTANCES[name]
    assert [by_id[decision_id["id"]].answer for decision_id in answered] == answered


async def test_a_client_of_triton_and_a_key(settings: Settings) -> None:
    async with grpc_end(settings) as end, InferenceServerClient(end.address) as client:
        rows = InferInput("instances", [2], "BYTES")
        rows.set_data_from_numpy(np.array([json.dumps(row).encode() for row in INSTANCES["net"][:2]], object))
        collected = []
        for key in ("one", "one", "two"):
            answer = await client.infer("net:decide", [rows], parameters={"idempotency_key": key})
            collected.append([json.loads(decision)["id"] for decision in answer.as_numpy("decisions")])
        assert collected[0] == collected[1] != collected[2]
        other = request("net:decide", INSTANCES["net"][2:4], idempotency_key="one")
        await refused(end.stub.ModelInfer(other), "FAILED_PRECONDITION", "was used for other instances")


async def test_a_dry_run_and_stability(settings: Settings) -> None:
    async with grpc_end(settings) as end:
        (answered,) = decisions(
            await end.stub.ModelInfer(request("net:decide", INSTANCES["net"][:1], dry_run=True))
        )
        assert answered["id"] is None
        message = request("net:decide", INSTANCES["net"][:1], stability=True)
        await refused(end.stub.ModelInfer(message), "INVALID_ARGUMENT", "--compare")
    assert recorded(settings) == []


async def test_a_stream_decides_too(settings: Settings) -> None:
    async with grpc_end(settings) as end:
        call = end.stub.ModelStreamInfer()
        await call.write(request("net:decide", INSTANCES["net"][:3]))
        await call.write(request("net:decide", [b"{}"]))
        await call.done_writing()
        answers = [answer async for answer in call]
    (answered,) = [answer for answer in answers if not answer.error_message]
    (wrong,) = [answer for answer in answers if answer.error_message]
    assert len(decisions(answered.infer_response)) == 3
    assert "instances[0]" in wrong.error_message


async def test_whoever_decides_needs_its_scope(settings: Settings, tmp_path: Path) -> None:
    tokens = key_file(tmp_path, desk="decide", analyst="infer explain")
    grpc_request = request("net:decide", INSTANCES["net"][:1])
    plain = pb.ModelInferRequest(model_name="net")
    async with grpc_end(settings.model_copy(update={"keys_file": tmp_path / "keys.toml"})) as end:
        for name, message in (("analyst", grpc_request), ("desk", plain)):
            call = end.stub.ModelInfer(message, metadata=(("x-api-key", tokens[name]),))
            await refused(call, "PERMISSION_DENIED", "lacks the scope")
        call = end.stub.ModelInfer(grpc_request, metadata=(("x-api-key", tokens["desk"]),))
        assert len(decisions(await call)) == 1
    (row,) = recorded(settings)
    assert row.caller == "desk"


ROW = json.dumps(INSTANCES["net"][0]).encode()
WRONG = {
    "no object": (request("net:decide", [b"[1, 2]"]), "instances[0] must be an object of features"),
    "two in one": (request("net:decide", [ROW + b"," + ROW]), "must be one JSON object"),
    "out of the list": (request("net:decide", [b"{}],[{}"]), "not valid JSON"),
    "a name twice": (request("net:decide", [b'{"age": 1, ' + ROW[1:]]), "'age' is given twice"),
    "NaN": (request("net:decide", [b'{"age": NaN}']), "send null for a missing value"),
    "another input": (request("net:decide", [ROW], name="x"), "takes one input, 'instances': BYTES [N]"),
    "nothing": (request("net:decide", []), "instances is empty"),
    "an explainer": (request("net:decide", [ROW], explainer="a"), "'explainer' is of explanations"),
    "a timeout": (request("net:decide", [ROW], timeout="soon"), "timeout"),
    "weights": (request("net:decide", [ROW], reference_weights="[1]"), "'reference_weights' is of explan"),
    "dry run": (request("net:decide", [ROW], dry_run="yes"), "dry_run must be true or false"),
    "a misspelt option": (request("net:decide", [ROW], dryrun=True), "'dryrun' (do you mean 'dry_run'?)"),
    "a key of a dry run": (request("net:decide", [ROW], dry_run=True, idempotency_key="k"), "leave the"),
    "a key": (request("net:decide", [ROW], idempotency_key=True), "idempotency_key must be a string"),
}


@pytest.mark.parametrize("case", WRONG)
async def test_what_is_refused(settings: Settings, case: str) -> None:
    message, output = WRONG[case]
    async with grpc_end(settings) as end:
        await refused(end.stub.ModelInfer(message), "INVALID_ARGUMENT", output)


async def test_models_that_do_not_decide(settings: Settings) -> None:
    async with grpc_end(settings) as end:
        await refused(end.stub.ModelInfer(request("absent:decide", [ROW])), "NOT_FOUND", "no model 'absent'")
