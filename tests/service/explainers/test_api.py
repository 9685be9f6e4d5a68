"""Explainers as resources: asked for over HTTP, compiled by a real worker or quickly in this process."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import pytest_asyncio
from pydantic import ValidationError

from rationale import Concepts, DeepShap, compile_model
from rationale_service.errors import InvalidExplainerError
from rationale_service.models.explainers.spec import ExplainerSpec
from rationale_service.settings import Settings
from tests.compiler.models import parsed
from tests.service import handmade
from tests.service.conftest import gateway
from tests.service.explaining import (
    DEEPSHAP,
    GRADIENT,
    OTHER,
    PATH,
    SECONDS,
    Gate,
    Sets,
    administered,
    assert_answers,
    compiles,
    count,
    explain,
    explainers_of,
    made_ready,
    names,
    settled,
    until,
    when,
    write_plain,
)

LOANS = "/v2/models/loans/explainers"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def admin(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[httpx.AsyncClient]:
    """A gateway that nothing succeeds in changing."""
    folder = tmp_path_factory.mktemp("admin")
    write_plain(folder / "models")
    handmade.write_gradient(folder / "models")
    sets = Sets(folder / "sets")
    sets.add("typical", handmade.X)
    async with administered(folder, sets) as client:
        yield client


async def test_from_a_request_to_an_answer_by_a_real_worker(folder: Path, sets: Sets) -> None:
    async with administered(folder, sets) as client:
        assert (await client.get(PATH)).json() == {"explainers": []}
        assert not (folder / "models.state").exists()
        answer = await client.put(f"{PATH}/typical", json=DEEPSHAP)
        assert answer.status_code == 202
        assert answer.headers["Location"] == f"{PATH}/typical"
        assert answer.json()["serving"] is None
        compiling = await when(client, f"{PATH}/typical", lambda s: s["progress"] is not None)
        assert compiling["state"] in ("compiling", "checking")
        status = await settled(client, f"{PATH}/typical")
        assert (status["state"], status["error"], status["default"]) == ("ready", None, True)
        assert status["asked"] == DEEPSHAP
        assert {"queued", "compiling", "checking", "publishing", "loading"} <= status["timings_s"].keys()
        entry = f"score_explain_{status['digest'][:16]}"
        assert names(folder / "models") == ["score", entry]
        assert status["serving"]["entry"] == entry
        assert status["serving"]["loaded"]
        explained = await explain(client)
        assert_answers(explained, "typical")
        assert explained["parameters"]["explanation"] == status["serving"]["digests"]["explanation"]
        assert names(folder / "models.state" / "staging") == []
        assert (await client.get("/v1/models")).json() == {"models": ["score"], "explainable": ["score"]}
        by_name = await client.get("/v1/models/score")
        assert by_name.json()["explainable"]


@pytest.mark.usefixtures("quick")
async def test_several_of_one_model(folder: Path, sets: Sets) -> None:
    async with administered(folder, sets) as client:
        first = await made_ready(client, f"{PATH}/first", DEEPSHAP)
        second = await made_ready(client, f"{PATH}/second", OTHER)
        assert (first["default"], second["default"]) == (True, False)
        assert_answers(await explain(client), "typical")
        assert_answers(await explain(client, explainer="second"), "other")
        listed = (await client.get(PATH)).json()["explainers"]
        assert [(e["name"], e["default"]) for e in listed] == [("first", True), ("second", False)]
        switched = await client.put(f"{PATH}/second", json={**OTHER, "default": True})
        assert (switched.status_code, switched.json()["default"]) == (200, True)
        assert compiles(client) == 2
        assert_answers(await explain(client), "other")
        assert not (await client.get(f"{PATH}/first")).json()["default"]
        unknown = await client.post("/v2/models/score/explain", json=explained_by("third"))
        assert unknown.status_code == 404
        assert "'first', 'second'" in unknown.json()["detail"]


def explained_by(explainer: str) -> dict[str, Any]:
    tensor = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}
    return {"inputs": [tensor], "parameters": {"explainer": explainer}}


@pytest.mark.usefixtures("quick")
async def test_nothing_is_compiled_twice(folder: Path, sets: Sets) -> None:
    async with administered(folder, sets, grace_s=0.5) as client:
        status = await made_ready(client, f"{PATH}/one", DEEPSHAP)
        repeated = await client.put(f"{PATH}/one", json={**DEEPSHAP, "options": {}, "memory_budget": "4GB"})
        assert (repeated.status_code, repeated.json()["digest"]) == (200, status["digest"])
        shared = await made_ready(client, f"{PATH}/two", DEEPSHAP)
        assert shared["serving"]["entry"] == status["serving"]["entry"]
        assert compiles(client) == 1
        assert (await client.delete(f"{PATH}/one")).status_code == 204
        assert (await client.get(f"{PATH}/one")).status_code == 404
        await asyncio.sleep(0.7)
        assert_answers(await explain(client, explainer="two"), "typical")
        assert (await client.delete(f"{PATH}/two")).status_code == 204
        await until(lambda: names(folder / "models") == ["score"])
        assert count(client, "loaded_explainers") == 0


@pytest.mark.usefixtures("quick")
async def test_two_models_of_one_content_stay_apart(folder: Path, sets: Sets) -> None:
    write_plain(folder / "models", "twin")
    async with administered(folder, sets) as client:
        of_model = await made_ready(client, f"{PATH}/one", DEEPSHAP)
        twin = await made_ready(client, "/v2/models/twin/explainers/one", DEEPSHAP)
        assert of_model["digest"] != twin["digest"]
        assert twin["serving"]["entry"].startswith("twin_explain_")
        await client.delete(f"{PATH}/one")
        assert (await client.get("/v2/models/twin_explain")).status_code == 200


@pytest.mark.usefixtures("quick")
async def test_what_was_compiled_by_hand_answers_until_another_is_the_default(
    tmp_path: Path, sets: Sets
) -> None:
    handmade.write_score(tmp_path / "models")
    async with administered(tmp_path, sets) as client:
        status = await made_ready(client, f"{PATH}/mine", GRADIENT)
        assert not status["default"]
        by_hand = (await explain(client))["parameters"]
        assert by_hand == (await explain(client, explainer="compiled"))["parameters"]
        assert by_hand["method"] == "deepshap"
        await made_ready(client, f"{PATH}/mine", {**GRADIENT, "default": True})
        assert_answers(await explain(client), "gradient")
        assert await answering(client) == {
            "name": "mine",
            "method": "gradient",
            "digest": digest_of(status),
            "explained_output": "y",
        }
        alias = await client.get("/v2/models/score_explain")
        assert alias.json()["name"] == status["serving"]["entry"]
        assert (await explain(client, explainer="compiled"))["parameters"] == by_hand
        assert (await client.delete(f"{PATH}/mine")).status_code == 204
        assert (await explain(client))["parameters"] == by_hand
        compiled = {
            "name": "compiled",
            "method": "deepshap",
            "digest": by_hand["explanation"],
            "explained_output": "y",
        }
        assert await answering(client) == compiled
        assert (await client.put(f"{PATH}/compiled", json=GRADIENT)).status_code == 409


async def answering(client: httpx.AsyncClient) -> dict[str, Any]:
    """What explained, as v1's answers tell it."""
    answer = await client.post("/v1/models/score:explain", json={"instances": handmade.X.tolist()})
    assert answer.status_code == 200, answer.text
    explainer: dict[str, Any] = answer.json()["explainer"]
    return explainer


def digest_of(status: dict[str, Any]) -> str:
    digest: str = status["serving"]["digests"]["explanation"]
    return digest


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    "names_option",
    [{}, {"inputs": ["x"]}, {"features": ["income", "debt"]}, {"features": {"x": ["income", "debt"]}}],
)
async def test_an_explainer_without_references_has_the_names_of_the_model(
    tmp_path: Path, names_option: dict[str, Any]
) -> None:
    """Callers who ask by name are answered whichever explainer is the default."""
    model = parsed(
        "g (float[N, 2] x) => (float[N, 1] y) { a = Constant <value_ints = [1]> () y = ReduceMean (x, a) }"
    )
    named = compile_model(model, DeepShap(np.zeros((2, 2))), feature_names=["income", "debt"])
    named.write(tmp_path, "loans")
    ask = {"instances": [{"income": 2.0, "debt": 4.0}]}
    async with gateway(Settings(repository=tmp_path, state=tmp_path / "state")) as client:
        expected = {"method": "gradient", "default": True, **names_option}
        for other in (["a", "b"], {"x": ["debt", "income"]}):
            answer = await client.put(f"{LOANS}/gradients", json={**expected, "features": other})
            assert answer.status_code == 422, answer.text
            assert "leave `features` out" in answer.json()["detail"]
        await made_ready(client, f"{LOANS}/gradients", expected)
        for verb in ("predict", "explain"):
            answer = await client.post(f"/v1/models/loans:{verb}", json=ask)
            assert answer.status_code == 200, answer.text
        assert answer.json()["explainer"]["name"] == "gradients"
        assert answer.json()["explanations"][0]["attributions"] == {"income": 0.5, "debt": 0.5}
        path = "/v1/models/loans/features?explainer="
        mine, compiled = [(await client.get(f"{path}{name}")).json() for name in ("gradients", "compiled")]
        assert mine["features"] == compiled["features"]  # a form has the ranges of the model's references
        assert mine["features"][0]["quantiles"]


@pytest.mark.usefixtures("quick")
async def test_no_default_changes_how_predictions_read_rows(tmp_path: Path) -> None:
    """Missing values are taken as the compiled explainer takes them."""
    handmade.write_score(tmp_path / "models")
    async with administered(tmp_path) as client:
        registry = client.app.state.gateway.plane.repository  # type: ignore[attr-defined]
        before = registry.manifest_of(registry.entry("score"))
        await made_ready(client, f"{PATH}/mine", {**GRADIENT, "default": True})
        now = client.app.state.gateway.plane.repository  # type: ignore[attr-defined]
        assert now.entry("score_explain").name != "score_explain"
        assert now.manifest_of(now.entry("score")) is before


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("x", "{", 400, "not valid JSON"),
        ("x", "[]", 400, "must be an object"),
        ("x", '{"metod": "deepshap"}', 422, "metod"),
        ("x", '{"method": "magic"}', 422, "choose deepshap"),
        ("x", '{"method": "deepshap"}', 422, "needs --references"),
        ("x", '{"method": "gradient", "reference_set": "typical"}', 422, "takes no --references"),
        ("x", '{"method": "gradient", "options": {"steps": 3}}', 422, "takes no --steps"),
        ("x", '{"method": "gradient", "options": {"steps": true}}', 422, "steps"),
        ("x", '{"method": "gradient", "targets": [-1]}', 422, "targets"),
        ("x", '{"method": "gradient", "memory_budget": "much"}', 422, "not an amount of memory"),
        ("x", '{"method": "deepshap", "reference_set": "absent"}', 404, "no reference set 'absent'"),
        ("..", '{"method": "gradient"}', 405, ""),
        ("..%2f..%2fx", '{"method": "gradient"}', 404, ""),
        ("%00", '{"method": "gradient"}', 422, "name"),
        ("~hidden", '{"method": "gradient"}', 422, "name"),
        ("x" * 101, '{"method": "gradient"}', 422, "name"),
        ("ä", '{"method": "gradient"}', 422, "name"),
    ],
)
async def test_what_cannot_be_asked_for(
    admin: httpx.AsyncClient, path: str, body: str, status: int, says: str
) -> None:
    answer = await admin.put(f"{PATH}/{path}", content=body)
    assert answer.status_code == status, answer.text
    assert says in answer.json()["detail"]
    assert (await admin.get(PATH)).json() == {"explainers": []}


async def test_models_that_can_have_none(admin: httpx.AsyncClient) -> None:
    for method in (admin.put, admin.get, admin.delete):
        for model, status in (("absent", 404), ("..%2fscore", 404), ("%2e%2e", 404), ("slope_explain", 422)):
            content: dict[str, Any] = {"json": GRADIENT} if method == admin.put else {}
            answer = await method(f"/v2/models/{model}/explainers/x", **content)
            assert answer.status_code == status, (method, model, answer.text)
    assert (await admin.get(f"{PATH}/absent")).status_code == 404
    assert (await admin.delete(f"{PATH}/absent")).status_code == 404


@pytest.mark.usefixtures("quick")
async def test_a_failure_changes_nothing(folder: Path, sets: Sets) -> None:
    sets.add("wide", np.ones((2, 5), np.float32))
    async with administered(folder, sets) as client:
        good = await made_ready(client, f"{PATH}/one", DEEPSHAP)
        await client.put(f"{PATH}/one", json={**DEEPSHAP, "reference_set": "wide"})
        status = await settled(client, f"{PATH}/one")
        assert status["state"] == "failed"
        assert "have shape [2, 5]; the model needs [K, 4]" in status["error"]
        assert status["serving"] == good["serving"]
        assert_answers(await explain(client), "typical")
        assert names(folder / "models") == ["score", good["serving"]["entry"]]
        assert names(folder / "models.state" / "staging") == []
    async with administered(folder, sets) as client:  # and it is still so after a restart
        assert (await client.get(f"{PATH}/one")).json() == status
        assert_answers(await explain(client), "typical")
        assert (await made_ready(client, f"{PATH}/one", DEEPSHAP))["error"] is None


async def test_the_later_of_two_wins(folder: Path, sets: Sets, quick: Gate) -> None:
    async with administered(folder, sets, max_compiles=2) as client:
        quick.close()
        await client.put(f"{PATH}/one", json=DEEPSHAP)
        await until(lambda: quick.waiting == 1)
        await client.put(f"{PATH}/one", json=OTHER)
        await until(lambda: quick.waiting == 2 or quick.cancelled == 1)
        quick.open()
        status = await settled(client, f"{PATH}/one")
        assert status["asked"] == OTHER
        assert_answers(await explain(client), "other")
        assert quick.cancelled == 1
        assert names(folder / "models") == ["score", status["serving"]["entry"]]


async def test_many_at_once_under_one_name_leave_the_last(folder: Path, sets: Sets, quick: Gate) -> None:
    specs = [DEEPSHAP, OTHER, GRADIENT] * 4
    async with administered(folder, sets, max_compiles=3, grace_s=0.5) as client:
        await asyncio.gather(*(client.put(f"{PATH}/one", json=spec) for spec in specs[:-1]))
        await client.put(f"{PATH}/one", json=specs[-1])
        status = await settled(client, f"{PATH}/one")
        assert (status["state"], status["asked"]) == ("ready", GRADIENT)
        assert_answers(await explain(client), "gradient")
        await until(lambda: names(folder / "models") == ["score", status["serving"]["entry"]])
        assert quick.waiting == 0


async def test_a_bounded_number_is_made_at_once(folder: Path, sets: Sets, quick: Gate) -> None:
    async with administered(folder, sets, max_compiles=1, max_queued_compiles=2) as client:
        quick.close()
        for i in range(3):
            spec = {"method": "integrated-gradients", "options": {"steps": i + 2}, "targets": "all"}
            assert (await client.put(f"{PATH}/e{i}", json=spec)).status_code == 202
        refused = await client.put(f"{PATH}/more", json=GRADIENT)
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "10")
        assert (await client.get(f"{PATH}/more")).status_code == 404
        await until(lambda: quick.waiting == 1)
        states = [e["state"] for e in (await client.get(PATH)).json()["explainers"]]
        assert states == ["compiling", "queued", "queued"]
        await client.delete(f"{PATH}/e0")
        await until(lambda: quick.cancelled == 1)
        quick.open()
        assert (await settled(client, f"{PATH}/e2"))["state"] == "ready"
        assert [e["name"] for e in (await client.get(PATH)).json()["explainers"]] == ["e1", "e2"]


@pytest.mark.usefixtures("quick")
async def test_ensure_makes_what_nobody_named(folder: Path, sets: Sets) -> None:
    spec = ExplainerSpec(targets="all")
    digest = sets.names["typical"]
    async with administered(folder, sets) as client:
        explainers = explainers_of(client)
        assert await explainers.ensure("score", spec, digest) is None
        await until(lambda: explainers.users(digest) != [])
        async with asyncio.timeout(SECONDS):
            while (entry := await explainers.ensure("score", spec, digest)) is None:
                await asyncio.sleep(0.02)
        (record,) = explainers.store.records.values()
        assert await explainers.ensure("score", spec, digest) is entry
        (used,) = explainers.store.records.values()
        assert used.updated_s > record.updated_s  # so it is not the one that goes next
        (listed,) = (await client.get(PATH)).json()["explainers"]
        assert listed["name"].startswith("~")
        assert (await client.post("/v2/models/score/explain", json=explained_by("x"))).status_code == 404
        answer = await client.post(
            f"/v2/models/{entry.name}/infer", json={**explained_by("x"), "parameters": {}}
        )
        assert answer.status_code == 200


def test_layers_contrasts_and_concepts_are_asked_for_as_on_the_command_line() -> None:
    spec = ExplainerSpec.model_validate(
        {"method": "lrp", "targets": [2, "1-0"], "layers": ["h1"], "concepts": "h1=2", "concept_axis": 1}
    )
    compile_request = spec.requested(referenced=False)
    assert compile_request.targets == [2, "1-0"]
    assert compile_request.layers == ["h1"]
    assert compile_request.concepts == Concepts("h1", 2)
    for wrong in ({"targets": ["1-"]}, {"targets": [-1]}, {"layers": "some"}, {"concept_axis": 0}):
        with pytest.raises(ValidationError):
            ExplainerSpec.model_validate({"method": "lrp", **wrong})
    with pytest.raises(InvalidExplainerError, match="--concepts 'h1'"):
        ExplainerSpec(method="lrp", concepts="h1").requested(referenced=False)


def test_groups_are_asked_for_by_their_features() -> None:
    groups = {"ends": ["a", "d"]}
    spec = ExplainerSpec.model_validate({"method": "lrp", "groups": groups})
    assert spec.requested(referenced=False).groups == groups
    assert len({ExplainerSpec(method="lrp", groups=g).digest("m", None) for g in ({}, groups)}) == 2
    for wrong in ({"ends": "a"}, [["a"]], {"ends": [1]}):
        with pytest.raises(ValidationError):
            ExplainerSpec.model_validate({"method": "lrp", "groups": wrong})


def test_logits_are_asked_for_by_a_flag() -> None:
    """What it leaves out has the digest that it had before there was one."""
    plain, logits = ExplainerSpec(), ExplainerSpec(logits=True)
    assert logits.requested(referenced=True).logits
    assert not plain.requested(referenced=True).logits
    assert plain.digest("m", "r") == ExplainerSpec(logits=False).digest("m", "r") != logits.digest("m", "r")
