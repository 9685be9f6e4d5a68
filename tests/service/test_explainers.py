"""Explainers as resources: asked for over HTTP, compiled by a real worker or quickly in this process."""

import asyncio
import contextlib
import errno
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import pytest_asyncio
import sqlalchemy as sa

from service.explainers import artefacts, workshop
from service.explainers.explainers import Explainers
from service.explainers.spec import ExplainerSpec
from service.state import State
from tests.service import handmade as made
from tests.service.explaining import (
    DEEPSHAP,
    GRADIENT,
    OTHER,
    PATH,
    SECONDS,
    Gate,
    Sets,
    administered,
    explain,
    made_ready,
    settled,
    until,
    when,
    write_plain,
)

LONG = ["long feature name " * 100 + str(i) for i in range(4)]  # several pages of a database
ATTRIBUTIONS = {
    "typical": (made.X[:, None] - made.X[:3].mean(0)) * made.W.T,
    "other": (made.X[:, None] - made.X[3:].mean(0)) * made.W.T,
    "gradient": made.X[:, None] * made.W.T,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_plain(tmp_path / "models")
    return tmp_path


@pytest.fixture
def sets(tmp_path: Path) -> Sets:
    sets = Sets(tmp_path / "sets")
    sets.add("typical", made.X[:3])
    sets.add("other", made.X[3:])
    return sets


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Gate:
    gate = Gate()
    monkeypatch.setattr(workshop, "compile_entry", gate)
    return gate


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def admin(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[httpx.AsyncClient]:
    """A gateway that nothing succeeds in changing."""
    folder = tmp_path_factory.mktemp("admin")
    write_plain(folder / "models")
    made.write_gradient(folder / "models")
    sets = Sets(folder / "sets")
    sets.add("typical", made.X)
    async with administered(folder, sets) as client:
        yield client


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def count(client: httpx.AsyncClient, name: str, **labels: str) -> float:
    metrics = client.app.state.metrics  # type: ignore[attr-defined]
    return metrics.registry.get_sample_value(f"rationale_{name}", labels) or 0.0


def compiles(client: httpx.AsyncClient) -> float:
    return count(client, "compile_duration_seconds_count", outcome="ready")


def explainers_of(client: httpx.AsyncClient) -> Explainers:
    explainers: Explainers = client.app.state.explainers  # type: ignore[attr-defined]
    return explainers


def assert_answers(answer: dict[str, Any], kind: str) -> None:
    np.testing.assert_allclose(answer["x_attributions"], ATTRIBUTIONS[kind], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(answer["y"], made.predict(made.X), rtol=1e-5)


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
        answer = await explain(client)
        assert_answers(answer, "typical")
        assert answer["parameters"]["explanation"] == status["serving"]["digests"]["explanation"]
        assert names(folder / "models.state" / "staging") == []
        assert (await client.get("/v1/models")).json() == {"models": ["score"]}
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
        assert "first, second" in unknown.json()["detail"]


def explained_by(explainer: str) -> dict[str, Any]:
    tensor = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}
    return {"inputs": [tensor], "parameters": {"explainer": explainer}}


@pytest.mark.usefixtures("quick")
async def test_nothing_is_compiled_twice(folder: Path, sets: Sets) -> None:
    async with administered(folder, sets, grace_s=0.5) as client:
        status = await made_ready(client, f"{PATH}/one", DEEPSHAP)
        again = await client.put(f"{PATH}/one", json={**DEEPSHAP, "options": {}, "memory_budget": "4GB"})
        assert (again.status_code, again.json()["digest"]) == (200, status["digest"])
        shared = await made_ready(client, f"{PATH}/two", DEEPSHAP)
        assert shared["serving"]["entry"] == status["serving"]["entry"]
        assert compiles(client) == 1
        assert (await client.delete(f"{PATH}/one")).status_code == 204
        assert (await client.get(f"{PATH}/one")).status_code == 404
        await asyncio.sleep(0.7)
        assert_answers(await explain(client, explainer="two"), "typical")
        assert (await client.delete(f"{PATH}/two")).status_code == 204
        await until(lambda: names(folder / "models") == ["score"])
        assert names(folder / "models.state" / "artefacts") == [status["serving"]["entry"]]
        assert count(client, "loaded_explainers") == 0
        await made_ready(client, f"{PATH}/three", DEEPSHAP)
        assert_answers(await explain(client), "typical")
        assert compiles(client) == 1
        assert names(folder / "models.state" / "artefacts") == []


@pytest.mark.usefixtures("quick")
async def test_two_models_of_one_content_stay_apart(folder: Path, sets: Sets) -> None:
    write_plain(folder / "models", "twin")
    async with administered(folder, sets) as client:
        own = await made_ready(client, f"{PATH}/one", DEEPSHAP)
        twin = await made_ready(client, "/v2/models/twin/explainers/one", DEEPSHAP)
        assert own["digest"] != twin["digest"]
        assert twin["serving"]["entry"].startswith("twin_explain_")
        await client.delete(f"{PATH}/one")
        assert (await client.get("/v2/models/twin_explain")).status_code == 200


@pytest.mark.usefixtures("quick")
async def test_they_come_back_after_a_restart(folder: Path, sets: Sets) -> None:
    async with administered(folder, sets) as client:
        await made_ready(client, f"{PATH}/first", {**DEEPSHAP, "default": False})
        await made_ready(client, f"{PATH}/second", OTHER)
        before = (await client.get(PATH)).json()
    async with administered(folder, sets) as client:
        assert (await client.get(PATH)).json() == before
        assert_answers(await explain(client), "other")
        assert_answers(await explain(client, explainer="first"), "typical")
        assert count(client, "loaded_explainers") == 2
        assert compiles(client) == 0


@pytest.mark.usefixtures("quick")
async def test_what_was_compiled_by_hand_answers_until_another_is_the_default(
    tmp_path: Path, sets: Sets
) -> None:
    made.write_score(tmp_path / "models")
    async with administered(tmp_path, sets) as client:
        status = await made_ready(client, f"{PATH}/mine", GRADIENT)
        assert not status["default"]
        by_hand = (await explain(client))["parameters"]
        assert by_hand == (await explain(client, explainer="compiled"))["parameters"]
        assert by_hand["method"] == "deepshap"
        await made_ready(client, f"{PATH}/mine", {**GRADIENT, "default": True})
        assert_answers(await explain(client), "gradient")
        alias = await client.get("/v2/models/score_explain")
        assert alias.json()["name"] == status["serving"]["entry"]
        assert (await explain(client, explainer="compiled"))["parameters"] == by_hand
        assert (await client.delete(f"{PATH}/mine")).status_code == 204
        assert (await explain(client))["parameters"] == by_hand
        assert (await client.put(f"{PATH}/compiled", json=GRADIENT)).status_code == 409


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
        ("x", '{"method": "gradient", "memory_budget": "much"}', 422, "no amount of memory"),
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
            content = {"json": GRADIENT} if method == admin.put else {}
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
async def test_a_full_disk_at_publication(folder: Path, sets: Sets, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with administered(folder, sets) as client:
        good = await made_ready(client, f"{PATH}/one", DEEPSHAP)
        with monkeypatch.context() as patched:
            patched.setattr(artefacts, "_move", full)
            await client.put(f"{PATH}/one", json=OTHER)
            status = await settled(client, f"{PATH}/one")
        assert status["state"] == "failed"
        assert status["error"] == "the entry cannot be written: No space left on device"
        assert status["serving"] == good["serving"]
        assert_answers(await explain(client), "typical")
        assert names(folder / "models") == ["score", good["serving"]["entry"]]
        assert names(folder / "models.state" / "staging") == []
        assert (await made_ready(client, f"{PATH}/one", OTHER))["error"] is None


@pytest.mark.usefixtures("quick")
async def test_a_disk_too_full_for_records(folder: Path, sets: Sets) -> None:
    """SQLite's own refusal, at the request and at the switch."""
    async with administered(folder, sets) as client:
        good = await made_ready(client, f"{PATH}/one", DEEPSHAP)
        state = explainers_of(client)._shelves.state
        with full(state):
            answer = await client.put(f"{PATH}/one", json={**OTHER, "features": LONG})
            assert answer.status_code == 503
            assert "database or disk is full" in answer.json()["detail"]
        assert (await client.get(f"{PATH}/one")).json() == good
        assert_answers(await explain(client), "typical")
        assert (await made_ready(client, f"{PATH}/one", OTHER))["error"] is None


@contextlib.contextmanager
def full(state: State) -> Iterator[None]:
    """The database cannot grow."""

    def limit(pages: str) -> None:
        with state.session() as session:
            session.execute(sa.text(f"PRAGMA max_page_count = {pages}"))

    limit("1")  # SQLite takes what it has
    try:
        yield
    finally:
        limit("1000000")


@pytest.mark.usefixtures("quick")
async def test_at_most_so_many_are_loaded(folder: Path, sets: Sets) -> None:
    async with administered(folder, sets, max_loaded_explainers=2) as client:
        for name, spec in (("typical", DEEPSHAP), ("other", OTHER), ("gradient", GRADIENT)):
            await made_ready(client, f"{PATH}/{name}", spec)
        await until(lambda: count(client, "loaded_explainers") == 2)
        listed = (await client.get(PATH)).json()["explainers"]
        assert [e["serving"]["loaded"] for e in listed] == [False, True, True]
        for name in ("typical", "other", "gradient", "typical"):
            assert_answers(await explain(client, explainer=name), name)
            assert count(client, "loaded_explainers") <= 2
        both = await asyncio.gather(*(explain(client, explainer=n) for n in ("other", "gradient") * 6))
        for answer, name in zip(both, ("other", "gradient") * 6, strict=True):
            assert_answers(answer, name)
        ready = await client.get(f"/v2/models/{listed[0]['serving']['entry']}/ready")
        assert ready.status_code == 200  # it is loaded for whoever asks
    async with administered(folder, sets, max_loaded_explainers=2) as client:
        assert count(client, "loaded_explainers") == 2
        for name in ("typical", "other", "gradient"):
            assert_answers(await explain(client, explainer=name), name)


@pytest.mark.usefixtures("quick")
async def test_what_is_kept_is_bounded(folder: Path, sets: Sets) -> None:
    kept = folder / "models.state" / "artefacts"
    async with administered(folder, sets, grace_s=0.2) as client:
        entries = {}
        for name, spec in (("typical", DEEPSHAP), ("other", OTHER), ("gradient", GRADIENT)):
            entries[name] = (await made_ready(client, f"{PATH}/{name}", spec))["serving"]["entry"]
        size = sum(p.stat().st_size for p in (folder / "models" / entries["other"]).rglob("*") if p.is_file())
    async with administered(folder, sets, grace_s=0.2, max_artefact_bytes=2 * size + 500) as client:
        for name in ("typical", "other", "gradient"):
            await client.delete(f"{PATH}/{name}")
            await until(lambda name=name: not (folder / "models" / entries[name]).exists())
        await until(lambda: names(kept) == sorted([entries["other"], entries["gradient"]]))


@pytest.mark.usefixtures("quick")
async def test_a_reference_set_is_forgotten_with_all_made_of_it(folder: Path, sets: Sets) -> None:
    async with administered(folder, sets, grace_s=0.2) as client:
        explainers = explainers_of(client)
        await made_ready(client, f"{PATH}/one", DEEPSHAP)
        await made_ready(client, f"{PATH}/two", {**DEEPSHAP, "targets": [1]})
        await made_ready(client, f"{PATH}/three", OTHER)
        await client.delete(f"{PATH}/two")
        await until(lambda: names(folder / "models.state" / "artefacts") != [])
        assert explainers.users(sets.names["typical"]) == ["score/one"]
        await explainers.forget(sets.names["typical"])
        assert [e["name"] for e in (await client.get(PATH)).json()["explainers"]] == ["three"]
        assert names(folder / "models.state" / "artefacts") == []
        assert len(names(folder / "models")) == 2
        rows = made.X[0].tobytes()
        held = [
            p for p in folder.rglob("*") if p.is_file() and p.parent != sets.folder and rows in p.read_bytes()
        ]
        assert held == []
        assert (await client.get("/v2/health/ready")).status_code == 200


async def test_forgetting_ends_what_is_being_made(folder: Path, sets: Sets, quick: Gate) -> None:
    async with administered(folder, sets) as client:
        quick.close()
        await client.put(f"{PATH}/one", json=DEEPSHAP)
        await until(lambda: quick.waiting == 1)
        await explainers_of(client).forget(sets.names["typical"])
        assert quick.cancelled == 1
        assert (await client.get(PATH)).json() == {"explainers": []}
        assert names(folder / "models.state" / "staging") == []


@pytest.mark.usefixtures("quick")
async def test_ensure_makes_what_nobody_named(folder: Path, sets: Sets) -> None:
    spec = ExplainerSpec(targets="all")
    digest = sets.names["typical"]
    async with administered(folder, sets, max_loaded_explainers=2, grace_s=0.2) as client:
        explainers = explainers_of(client)
        assert await explainers.ensure("score", spec, digest) is None
        await until(lambda: explainers.users(digest) != [])
        async with asyncio.timeout(SECONDS):
            while (entry := await explainers.ensure("score", spec, digest)) is None:
                await asyncio.sleep(0.02)
        assert (await client.get(PATH)).json() == {"explainers": []}
        assert (await client.post("/v2/models/score/explain", json=explained_by("x"))).status_code == 404
        answer = await client.post(
            f"/v2/models/{entry.name}/infer", json={**explained_by("x"), "parameters": {}}
        )
        assert answer.status_code == 200
        for targets in ([0], [1], [2]):
            await explainers.ensure("score", ExplainerSpec(targets=targets), digest)
        assert len(explainers.users(digest)) == 2


@pytest.mark.usefixtures("quick")
async def test_a_model_that_changed_is_explained_anew(folder: Path, sets: Sets) -> None:
    async with administered(folder, sets) as client:
        old = await made_ready(client, f"{PATH}/one", DEEPSHAP)
        write_again(folder, 3.0)
        refused = await client.put(f"{PATH}/two", json=GRADIENT)
        assert refused.status_code == 409
        assert "restart" in refused.json()["detail"]
        assert_answers(await explain(client), "typical")
    async with administered(folder, sets) as client:
        new = await settled(client, f"{PATH}/one")
        assert new["state"] == "ready"
        assert new["serving"]["digest"] != old["serving"]["digest"]
        answer = await explain(client)
        np.testing.assert_allclose(
            answer["x_attributions"], 3 * ATTRIBUTIONS["typical"], rtol=1e-5, atol=1e-4
        )


def write_again(folder: Path, scale: float) -> None:
    path = folder / "models" / "score"
    path.rename(folder / "before")
    write_plain(folder / "models", scale=scale)


@pytest.mark.usefixtures("quick")
async def test_an_entry_that_somebody_deleted_is_made_again(folder: Path, sets: Sets) -> None:
    async with administered(folder, sets) as client:
        entry = (await made_ready(client, f"{PATH}/one", DEEPSHAP))["serving"]["entry"]
    (folder / "models" / entry).rename(folder / "elsewhere")
    async with administered(folder, sets) as client:
        assert (await settled(client, f"{PATH}/one"))["state"] == "ready"
        assert_answers(await explain(client), "typical")


async def test_a_second_gateway_on_one_state_is_refused(folder: Path, sets: Sets) -> None:
    async with administered(folder, sets) as client:
        State(folder / "models.state").open()
        answer = await client.put(f"{PATH}/one", json=GRADIENT)
        assert answer.status_code == 503
        assert "another gateway" in answer.json()["detail"]
        assert json.loads((await client.get(PATH)).content) == {"explainers": []}
