"""References that come with a request, or are named by it."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb

from rationale import DeepShap, IntegratedGradients, OpenReferences, compile_model
from rationale_service.protocols.grpc.servicer import infer
from tests.compiler.models import mlp, rows
from tests.service import handmade
from tests.service.explaining import SECONDS, Gate, administered, explainers_of, until
from tests.service.own_time import skipping
from tests.service.references.request_time import (
    ATTRIBUTIONS,
    BASE,
    OTHER,
    SETS,
    R,
    X,
    arrays,
    ask,
    assert_explains,
    client,
    expected,
    folder,
    holding,
    put,
    served,
    tensor,
)

__all__ = ["client", "folder"]  # fixtures, found by their names


async def test_a_request_may_bring_its_references(client: httpx.AsyncClient) -> None:
    assert_explains(await ask(client), BASE)
    for reference_rows in (R, OTHER):
        answer = await ask(client, tensor("x_references", reference_rows))
        assert_explains(answer, reference_rows)
        assert len(answer.json()["parameters"]["references"]) == 64
    assert_explains(await ask(client), BASE)


@pytest.mark.usefixtures("quick")
async def test_as_many_references_as_are_allowed(folder: Path) -> None:
    async with administered(folder, open_references=len(R)) as client:
        assert_explains(await ask(client, tensor("x_references", R)), R)
        answer = await ask(client, tensor("x_references", np.concatenate([R, R[:1]])))
        assert (answer.status_code, f"at most {len(R)}" in answer.json()["detail"]) == (422, True)


async def test_with_weights(client: httpx.AsyncClient) -> None:
    weights = np.array([1.0, 0, 2, 3, 1, 1])
    answer = await ask(client, tensor("x_references", R), tensor("reference_weights", weights))
    assert_explains(answer, R, weights)


async def test_a_set_that_comes_back_is_baked_where_that_is_asked_for(
    folder: Path,
    quick: Gate,  # noqa: ARG001
) -> None:
    async with administered(folder, bake_references_after=2) as client:
        await assert_baked(client, folder)


async def assert_baked(client: httpx.AsyncClient, folder: Path) -> None:
    references_tensor = tensor("x_references", R)
    first = await ask(client, references_tensor)
    (opened,) = served(client)
    assert holding(folder, R) == []
    assert_explains(await ask(client, references_tensor), R)
    await until(lambda: len(served(client)) == 2)

    async def is_baked() -> bool:
        answer = await ask(client, references_tensor)
        assert_explains(answer, R)
        return answer.json()["parameters"]["explanation"] != first.json()["parameters"]["explanation"]

    async with asyncio.timeout(SECONDS):
        while not await is_baked():
            await asyncio.sleep(0.02)
    page = (await client.get("/metrics")).text
    assert 'cache="baked_references",result="hit"' in page
    (listed,) = (await client.get(SETS)).json()["reference_sets"]
    assert listed["name"].startswith("~")
    assert listed["used_by"] == []
    assert (await client.delete(f"{SETS}/{listed['name']}")).status_code == 204
    assert served(client) == {opened}
    assert holding(folder, R) == []


async def test_the_oldest_set_without_a_name_makes_room(folder: Path, quick: Gate) -> None:  # noqa: ARG001
    async with administered(folder, bake_references_after=2, max_unnamed_reference_sets=1) as client:
        for reference_rows in (R, OTHER):
            for _ in range(2):
                await ask(client, tensor("x_references", reference_rows))
            await until(lambda reference_rows=reference_rows: bool(holding(folder, reference_rows)))
        await until(lambda: not holding(folder, R))
        assert holding(folder, OTHER)


async def test_what_has_a_name_too_stays_when_room_is_made(folder: Path, quick: Gate) -> None:  # noqa: ARG001
    """What requests brought, and somebody has put under a name since: only the hidden name goes."""
    async with administered(folder, bake_references_after=2, max_unnamed_reference_sets=1) as client:
        for _ in range(2):
            await ask(client, tensor("x_references", R))
        await until(lambda: bool(holding(folder, R)))
        assert (await put(client, "mine", R)).is_success
        sets = client.app.state.gateway.references.sets  # type: ignore[attr-defined]
        digest = sets.get("mine").digest

        def explainers() -> list[str]:  # their stage may change meanwhile
            return [record.name for record in explainers_of(client).store.using(digest)]

        names = explainers()
        assert len(sets.named(digest)) == 2
        assert names
        for _ in range(2):
            await ask(client, tensor("x_references", OTHER))
        await until(lambda: sets.named(digest) == ["mine"])
        assert explainers() == names
        assert_explains(await ask(client, reference_set="mine"), R)


async def test_nothing_is_kept_of_a_request_by_default(client: httpx.AsyncClient, folder: Path) -> None:
    for _ in range(4):
        assert_explains(await ask(client, tensor("x_references", R)), R)
    assert (await client.get(SETS)).json() == {"reference_sets": []}
    assert holding(folder, R) == []


async def test_an_entry_that_was_compiled_so_answers(folder: Path, quick: Gate) -> None:
    compile_model(mlp(), DeepShap(OpenReferences(9)), targets="all").write(folder / "models", "net")
    quick.close()
    async with administered(folder) as client:
        assert_explains(await ask(client, tensor("x_references", R)), R)
        fed = {"x": X, "x_references": np.stack([np.resize(R, (9, 5))] * 3)}
        fed["reference_weights"] = np.ones((3, 9), np.float32)
        body = {"inputs": [tensor(name, array) for name, array in fed.items()]}
        answer = await client.post("/v2/models/net_explain_open/infer", json=body)
        assert_explains(answer, np.resize(R, (9, 5)))


async def test_integrated_gradients(folder: Path, quick: Gate) -> None:  # noqa: ARG001
    method = IntegratedGradients(BASE, steps=4)
    compile_model(mlp(), method, targets="all").write(folder / "models", "net")
    async with administered(folder) as client:
        answer = arrays(await ask(client, tensor("x_references", R)))
    expected = compile_model(mlp(), IntegratedGradients(R, steps=4), targets="all").explain(X)
    np.testing.assert_allclose(answer[ATTRIBUTIONS], expected[ATTRIBUTIONS], rtol=1e-5, atol=1e-6)


async def test_groups_stay(folder: Path, quick: Gate) -> None:  # noqa: ARG001
    names, groups = list("abcde"), {"ends": ["e", "a"]}
    compile_model(mlp(), DeepShap(BASE), targets=[1], feature_names=names, groups=groups).write(
        folder / "models", "net"
    )
    async with administered(folder) as client:
        answer = arrays(await ask(client, tensor("x_references", R)))
    ungrouped = compile_model(mlp(), DeepShap(R), targets=[1]).explain(X)[ATTRIBUTIONS]
    expected = np.concatenate([ungrouped[..., [0, 4]].sum(-1, keepdims=True), ungrouped[..., 1:4]], axis=-1)
    np.testing.assert_allclose(answer["group_attributions"], expected, rtol=1e-5, atol=1e-6)


async def test_over_v1(client: httpx.AsyncClient) -> None:
    names = ["age", "income", "debt", "years", "cards"]
    named = [dict(zip(names, row, strict=True)) for row in R.tolist()]
    body = {"instances": X.tolist(), "references": named, "reference_weights": [1, 0, 2, 3, 1, 1]}
    answer = (await client.post("/v1/models/net:explain", json=body)).json()
    expected_value = expected(R, [1, 0, 2, 3, 1, 1])
    attributions = [[t["attributions"][name] for name in names] for t in answer["explanations"][1]["targets"]]
    np.testing.assert_allclose(attributions, expected_value[ATTRIBUTIONS][1], rtol=1e-5, atol=1e-6)
    assert (await put(client, "typical", OTHER)).status_code == 201
    body = {"instances": X.tolist(), "reference_set": "typical"}
    answer = (await client.post("/v1/models/net:explain", json=body)).json()
    base = [t["base_value"] for t in answer["explanations"][0]["targets"]]
    np.testing.assert_allclose(base, expected(OTHER)["base_value"][0], rtol=1e-5)


NEEDS_ROWS = "at most"
REFUSED: dict[str, tuple[list[dict[str, Any]], dict[str, Any], str]] = {
    "width": ([tensor("x_references", R[:, :4])], {}, "takes"),
    "rank": ([tensor("x_references", R[0])], {}, "takes"),
    "no rows": ([tensor("x_references", R[:0])], {}, "K at least 1"),
    "too many": ([tensor("x_references", rows(33, 5))], {}, NEEDS_ROWS),
    "another input": ([tensor("y_references", R)], {}, "unknown input"),
    "negative weights": (
        [tensor("x_references", R), tensor("reference_weights", -np.ones(6))],
        {},
        "not negative",
    ),
    "weights alone": ([tensor("reference_weights", np.ones(6))], {}, "unknown input"),
    "too large a number": ([tensor("x_references", R.astype(np.float64) * 1e300)], {}, "does not fit FP32"),
    "both": ([tensor("x_references", R)], {"reference_set": "typical"}, "not both"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_what_is_refused(client: httpx.AsyncClient, name: str) -> None:
    more, parameters, message = REFUSED[name]
    answer = await ask(client, *more, **parameters)
    assert answer.status_code == 422, answer.text
    assert message in answer.json()["detail"]
    assert served(client) == set()


async def test_a_set_that_is_not_there(client: httpx.AsyncClient) -> None:
    assert (await ask(client, reference_set="nobody")).status_code == 404


async def test_a_method_without_references(tmp_path: Path, quick: Gate) -> None:  # noqa: ARG001
    handmade.write_gradient(tmp_path / "models")
    async with administered(tmp_path) as client:
        x, r = np.ones((1, 2), np.float32), np.zeros((2, 2), np.float32)
        body = {"inputs": [tensor("x", x), tensor("x_references", r)]}
        answer = await client.post("/v2/models/slope/explain", json=body)
        assert answer.status_code == 422
        assert "uses no references" in answer.json()["detail"]
        body = {"inputs": [tensor("x", x), tensor("x_references", r)]}
        assert (await client.post("/v2/models/slope/infer", json=body)).status_code == 422


async def test_no_answer_within_the_deadline(folder: Path, quick: Gate) -> None:
    quick.close()
    async with administered(folder, request_timeout_s=0.3) as client:
        with skipping():
            answer = await ask(client, tensor("x_references", R))
        assert answer.status_code == 503
        assert "retry-after" in answer.headers


async def test_what_cannot_be_compiled_says_why(tmp_path: Path, quick: Gate) -> None:  # noqa: ARG001
    compile_model(mlp(), DeepShap(rows(4, 7)), targets="all", inputs=["h1"]).write(tmp_path / "models", "net")
    async with administered(tmp_path) as client:
        answer = await ask(client, tensor("h1_references", rows(4, 7)))
        assert answer.status_code == 422


async def test_over_grpc(folder: Path, quick: Gate) -> None:  # noqa: ARG001
    """The same tensors and parameter as over HTTP."""
    async with administered(folder) as client:
        handler = client.app.state.gateway.handler  # type: ignore[attr-defined]
        message = pb.ModelInferRequest(model_name="net_explain")
        for name, array in (("x", X), ("x_references", R)):
            message.inputs.add(name=name, datatype="FP32", shape=array.shape)
            message.raw_input_contents.append(array.tobytes())
        answer = await infer(handler, message, None)
        outputs = {o.name: raw for o, raw in zip(answer.outputs, answer.raw_output_contents, strict=True)}
        attributions = np.frombuffer(outputs[ATTRIBUTIONS], np.float32).reshape(3, 3, 5)
        np.testing.assert_allclose(attributions, expected(R)[ATTRIBUTIONS], rtol=1e-5, atol=1e-6)
        assert answer.parameters["references"].string_param
