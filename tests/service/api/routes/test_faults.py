"""One answer tells all that is wrong with a request, as far as ten problems."""

import contextlib
import gc
import re
import weakref
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb

from rationale.errors import quoted
from rationale_service.engine.checks import Faults
from rationale_service.errors import InvalidInputError, MalformedError
from tests.service import handmade
from tests.service.api.routes.test_errors import problem
from tests.service.messages import GOOD, request, tensor

pytestmark = pytest.mark.asyncio(loop_scope="session")

ROW = dict(zip(handmade.FEATURES, [1.0, 2.0, 3.0, 4.0], strict=True))
OUTPUTS = [{"name": "nobody"}]


def problem_texts(detail: str) -> list[str]:
    """The problems that a text numbers."""
    count, _, remainder = detail.partition(" problems: ")
    texts = [text.strip() for text in re.split(r"\(\d+\) ", remainder)[1:]]
    assert len(texts) == int(count.removeprefix("the first "))
    return texts


async def invalid(client: httpx.AsyncClient, path: str, message: dict[str, Any]) -> list[str]:
    return problem_texts(problem(await client.post(path, json=message), 422, "invalid-input")["detail"])


@pytest.mark.parametrize("verb", ["predict", "explain"])
async def test_of_named_features(client: httpx.AsyncClient, verb: str) -> None:
    wrong = {"income": "much", "debt": [1], "sex": 1, "colour": 2, "late_payments": 0}
    instances = [ROW, wrong, [1, 2, 3], ROW | {"x": [1, 2, 3, 4]}]
    texts = await invalid(client, f"/v1/models/score:{verb}", {"instances": instances})
    for text, message in zip(
        texts,
        [
            "instances[1]: feature 'income' must be a number, not a string",
            "instances[1]: feature 'debt' is one value, not a list",
            "instances[1]: unknown feature 'sex', 'colour'; the model takes 'income', ",
            "instances[1]: missing feature 'age_of_account'",
            "instances[2] is a list of shape [3], but input 'x' takes [4] per row",
            "instances[3]: input 'x' is given twice",
        ],
        strict=True,
    ):
        assert text.startswith(message)


@pytest.mark.parametrize(("count", "more"), [(10, ""), (12, " and 2 more")])
async def test_ten_names_are_listed(count: int, more: str) -> None:
    names = [f"n{i}" for i in range(count)]
    assert quoted(names) == ", ".join(f"'{name}'" for name in names[:10]) + more


async def test_of_duplicates_too(client: httpx.AsyncClient) -> None:
    body = '{"instances": [{"income": 1, "debt": 2, "income": 3, "debt": 4, "sex": 1}]}'
    answer = await client.post("/v1/models/score:predict", content=body)
    assert [text.partition(";")[0] for text in problem_texts(answer.json()["detail"])] == [
        "feature 'income' is given twice",
        "feature 'debt' is given twice",
        "instances[0]: unknown feature 'sex'",
        "instances[0]: missing feature 'age_of_account', 'late_payments'",
    ]


async def test_of_instances_and_their_references(client: httpx.AsyncClient) -> None:
    message = {"instances": [[1, 2, 3]], "references": [ROW, {}], "reference_weights": ["heavy", 1]}
    instance, reference, weights = await invalid(client, "/v1/models/score:explain", message)
    assert instance.startswith("instances[0] is a list of shape [3]")
    assert reference.startswith("references[1]: missing 'income', 'debt'")
    assert "reference_weights" in weights


@pytest.mark.parametrize("verb", ["infer", "explain"])
async def test_of_tensors_in_json(client: httpx.AsyncClient, verb: str) -> None:
    x = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3]}
    y = {"name": "y", "shape": [1, 1], "datatype": "FP32", "data": [1]}
    z = {"name": "z", "shape": [1, 1], "datatype": "FP33", "data": [1]}
    texts = await invalid(client, f"/v2/models/score/{verb}", {"inputs": [x, y, z], "outputs": OUTPUTS})
    for text, message in zip(
        texts,
        [
            "input 'x' has 3 values, but its shape [1, 4] holds 4",
            "input 'z': datatype 'FP33' must be one of",
            "unknown input 'y': model 'score",
            "unknown output 'nobody': model 'score",
        ],
        strict=True,
    ):
        assert text.startswith(message)


PAIR: dict[str, tuple[str, list[int], np.ndarray]] = {
    "a": ("FP32", [2, 3], np.ones((2, 3), np.float32)),
    "b": ("FP64", [2, 2, 2], np.ones((2, 2, 2))),
}
OF_PAIR = ["input 'a' has shape [2, 3], but the model", "input 'b' is FP64, but the model"]


async def test_of_tensors_that_do_not_fit_the_model(client: httpx.AsyncClient) -> None:
    inputs = [
        {"name": name, "datatype": kind, "shape": shape, "data": array.ravel().tolist()}
        for name, (kind, shape, array) in PAIR.items()
    ]
    texts = await invalid(client, "/v2/models/pair/infer", {"inputs": inputs, "outputs": OUTPUTS})
    for text, message in zip(texts, [*OF_PAIR, "unknown output 'nobody'"], strict=True):
        assert text.startswith(message)


async def test_of_messages_that_are_no_requests(client: httpx.AsyncClient) -> None:
    x = {"name": 1, "shape": ["4"], "datatype": "FP32", "data": [1]}
    answer = await client.post("/v2/models/score/infer", json={"id": 7, "inputs": [x, {}]})
    texts = problem_texts(problem(answer, 400, "malformed-request")["detail"])
    assert [text.partition(": ")[0] for text in texts] == [
        "id",
        "inputs.0.name",
        "inputs.0.shape.0",
        "inputs.1.name",
        "inputs.1.shape",
        "inputs.1.datatype",
    ]


@pytest.mark.parametrize("raw", [False, True])
async def test_over_grpc(stub: Any, raw: bool) -> None:
    tensors = [
        tensor(name, kind, tuple(shape), **({} if raw else {f"{kind.lower()}_contents": array.ravel()}))
        for name, (kind, shape, array) in PAIR.items()
    ]
    tensors.append(tensor("c", "FP33", (1,)))
    content = [*(array.tobytes() for _, _, array in PAIR.values()), b""] if raw else []
    output = pb.ModelInferRequest.InferRequestedOutputTensor(name="nobody")
    message = request("pair", *tensors, outputs=[output], raw_input_contents=content)
    with pytest.raises(grpc.RpcError) as caught:
        stub.ModelInfer(message)
    texts = problem_texts(caught.value.details().partition(": ")[2])
    for text, detail in zip(texts, ["input 'c': datatype", *OF_PAIR, "unknown output 'nobody'"], strict=True):
        assert text.startswith(detail)


async def test_ten_are_told_and_each_is_short(client: httpx.AsyncClient) -> None:
    wrong = {f"{'long' * 20}{i}": 1 for i in range(500)}
    answer = await client.post("/v1/models/score:predict", json={"instances": [ROW | wrong] * 100})
    document = problem(answer, 422, "invalid-input", "the first 10 problems: (1) instances[0]: unknown")
    assert "…" in document["detail"]
    assert len(document["detail"]) < 4000


async def test_one_is_told_as_it_is(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/models/score:predict", json={"instances": [ROW | {"sex": 1}]})
    detail = problem(answer, 422, "invalid-input")["detail"]
    assert detail.startswith("instances[0]: unknown feature 'sex'; ")


async def test_the_first_says_of_which_kind_they_are() -> None:
    faults = Faults()
    faults.report()
    with faults:
        raise MalformedError("unreadable")
    with faults:
        raise InvalidInputError("too wide")
    with pytest.raises(MalformedError, match=r"2 problems: \(1\) unreadable \(2\) too wide"):
        faults.report()
    with pytest.raises(ZeroDivisionError), faults:
        raise ZeroDivisionError


class RequestBody:
    """Stands for a request's bytes."""


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("ends", [False, True])
async def test_what_was_told_keeps_nothing_of_the_request(count: int, ends: bool) -> None:
    """A body of 64 MB would stay until the garbage collector comes."""

    def refuse(body: RequestBody) -> None:
        faults = Faults()
        for number in range(count - ends):
            with faults:
                raise InvalidInputError(f"{number} of {body}")
        if ends:
            faults.end(InvalidInputError(f"the last of {body}"))
        faults.report()

    gc.disable()
    try:
        body = RequestBody()
        gone = weakref.ref(body)
        with contextlib.suppress(InvalidInputError):
            refuse(body)
        del body
        assert gone() is None
    finally:
        gc.enable()


MISSPELT = {"refrence_set": "reference_set", "Explainer": "explainer", "comparewith": "compare_with"}


@pytest.mark.parametrize(("name", "meant"), MISSPELT.items())
async def test_of_a_misspelt_choice(client: httpx.AsyncClient, stub: Any, name: str, meant: str) -> None:
    """The default explainer and its references would answer, and nobody would notice."""
    text = f"unknown option '{name}' (do you mean '{meant}'?)"
    x = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}
    for path, message in {
        "/v1/models/score:explain": {"instances": [ROW], name: ["a"]},
        "/v2/models/score/explain": {"inputs": [x], "parameters": {name: "a"}},
    }.items():
        assert problem(await client.post(path, json=message), 422, "invalid-input")["detail"] == text
    good = request("score_explain", GOOD)
    good.parameters[name].string_param = "a"
    with pytest.raises(grpc.RpcError) as error:
        stub.ModelInfer(good)
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert str(error.value.details()).endswith(text)


async def test_of_no_option_of_ours(client: httpx.AsyncClient) -> None:
    """Clients of other servers send more members and parameters."""
    x = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}
    more = {"priority": 1, "sequence_id": 7, "sequence_start": True, "headers": {}}
    for path, message in {
        "/v1/models/score:explain": {"instances": [ROW], "signature_name": "serving_default", **more},
        "/v2/models/score/explain": {"inputs": [x], "parameters": more},
    }.items():
        assert (await client.post(path, json=message)).status_code == 200
