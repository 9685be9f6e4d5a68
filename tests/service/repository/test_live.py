"""Entries that are broken, and entries that come, change and go while the gateway serves."""

import asyncio
import contextlib
import json
import shutil
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http
from tritonclient.utils import InferenceServerException

from rationale import DeepShap, Deployment, compile_model
from rationale.distribution import version
from rationale.errors import RepositoryError
from rationale_service.app import create_app, create_backend
from rationale_service.errors import NotReadyError
from rationale_service.models.explainers.records import read
from rationale_service.models.live import LiveRepository
from rationale_service.repository.entry import Entry
from rationale_service.security.keys import Scope, new_key
from rationale_service.settings import Settings
from scripts.triton.serve import DEFAULT_FOLDER, command, free_ports, started
from tests.compiler.models import FEATURES, mlp, rows
from tests.service import handmade, patient
from tests.service.child import ready_line, serve
from tests.service.explaining import (
    DEEPSHAP,
    PATH,
    Sets,
    administered,
    assert_answers,
    count,
    explain,
    made_ready,
    settled,
    until,
    write_plain,
)
from tests.service.in_process import client_of
from tests.triton.conftest import StartTriton, start_triton

__all__ = ["start_triton"]  # a fixture, found by its name

ASK = {"instances": handmade.X.tolist()}
FAILING = """dynamic_batching {} model_warmup { name: "row" batch_size: 1 inputs { key: "ids"
    value { data_type: TYPE_INT64 dims: 1 input_data_file: "ids" } } }"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two models, of which one has an explanation; `broken` is to be broken, and sound."""
    handmade.write_score(tmp_path)
    handmade.write_faulty(tmp_path)
    (tmp_path / "table").rename(tmp_path / "broken")
    edit(tmp_path / "broken" / "config.pbtxt", '"table"', '"broken"')
    for name in ("log", "mixing", "open"):
        shutil.rmtree(tmp_path / name)
    return tmp_path


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def break_manifest(broken: Path) -> None:
    shutil.copy(broken.parent / "score_explain" / "explanation.json", broken)


def break_warmup(broken: Path) -> None:
    edit(broken / "config.pbtxt", "dynamic_batching {}", FAILING)
    (broken / "warmup").mkdir()
    (broken / "warmup" / "ids").write_bytes((99).to_bytes(8, "little"))


BREAK: dict[str, Callable[[Path], Any]] = {
    "broken/config.pbtxt: is not a model configuration": lambda folder: edit(
        folder / "config.pbtxt", "{", "["
    ),
    "broken/config.pbtxt: cannot be read": lambda folder: (folder / "config.pbtxt").unlink(),
    "broken/1/model.onnx: is missing": lambda folder: (folder / "1" / "model.onnx").unlink(),
    "broken/1/model.onnx: ONNX Runtime cannot load it": lambda folder: (
        folder / "1" / "model.onnx"
    ).write_bytes(b"no model"),
    "broken/explanation.json: lists output": break_manifest,
    "broken: its warmup sample fails": break_warmup,
}


@contextlib.asynccontextmanager
async def gateway(folder: Path, **settings: Any) -> AsyncIterator[tuple[httpx.AsyncClient, LiveRepository]]:
    chosen_settings = Settings(**{"repository": folder, **settings})
    app = create_app(chosen_settings, create_backend(chosen_settings))
    async with app.router.lifespan_context(app), client_of(app) as client:
        await app.state.gateway.loading
        yield client, app.state.gateway.live


def live_of(client: Any) -> LiveRepository:
    """Return the live repository of a client's app."""
    live: LiveRepository = client.app.state.gateway.live
    return live


async def index(client: httpx.AsyncClient) -> dict[str, tuple[str, str]]:
    """State and reason, by name."""
    items = (await client.post("/v2/repository/index")).json()
    return {item["name"]: (item["state"], item["reason"]) for item in items}


async def unserved(client: httpx.AsyncClient) -> float:
    page = (await client.get("/metrics")).text
    (value,) = (
        line.split()[1] for line in page.splitlines() if line.startswith("rationale_unserved_entries ")
    )
    return float(value)


async def predicted(client: httpx.AsyncClient, model: str = "score") -> Any:
    answer = await client.post(f"/v1/models/{model}:predict", json=ASK)
    assert answer.status_code == 200, answer.text
    return answer.json()["predictions"]


def rewrite(folder: Path, bias: float) -> None:
    """`score` and its explanation, y moved by `bias`; as a compile does it, by renames."""
    elsewhere = folder / ".rationale-new"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(handmade, "B", handmade.B + np.float32(bias))
        handmade.write_score(elsewhere)
    for name in ("score", "score_explain"):
        (folder / name).rename(elsewhere / f"old-{name}")
        (elsewhere / name).rename(folder / name)
    shutil.rmtree(elsewhere)


# --- one that is broken -----------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", BREAK)
async def test_what_is_sound_is_served(folder: Path, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    BREAK[reason](folder / "broken")
    async with gateway(folder) as (client, _):
        assert (await client.get("/v2/health/ready")).status_code == 200
        np.testing.assert_allclose(await predicted(client), handmade.predict(handmade.X), rtol=1e-6)
        listed = await index(client)
        assert {name: state for name, (state, _) in listed.items()} == {
            "score": "READY",
            "score_explain": "READY",
            "broken": "UNAVAILABLE",
        }
        assert listed["broken"][1].startswith(reason)
        assert str(folder) not in listed["broken"][1]
        assert await unserved(client) == 1
        assert f"entry broken is not served: {reason}" in caplog.text
        for refused in (
            await client.post("/v1/models/broken:predict", json=ASK),
            await client.get("/v2/models/broken"),
            await client.get("/v2/models/broken/ready"),
        ):
            assert refused.status_code == 503
            assert "POST /v2/repository/index" in refused.json()["detail"]


@pytest.mark.parametrize("reason", BREAK)
async def test_strictly_none_is_served(folder: Path, reason: str) -> None:
    BREAK[reason](folder / "broken")
    with pytest.raises(RepositoryError, match=reason):
        async with gateway(folder, strict=True):
            pass


async def test_an_explanation_that_is_broken(folder: Path) -> None:
    (folder / "score_explain" / "1" / "model.onnx").write_bytes(b"no model")
    async with gateway(folder) as (client, _):
        await predicted(client)
        for path in ("/v1/models/score:explain", "/v1/models/score_explain:explain"):
            refused = await client.post(path, json=ASK)
            assert refused.status_code == 503
            assert "'score_explain'" in refused.json()["detail"]


async def test_nothing_that_is_sound(folder: Path) -> None:
    shutil.rmtree(folder / "broken")
    for name in ("score", "score_explain"):
        (folder / name / "1" / "model.onnx").write_bytes(b"no model")
    with pytest.raises(RepositoryError) as caught:
        async with gateway(folder):
            pass
    assert [line.split(":")[0] for line in str(caught.value).splitlines()] == [
        f"{folder}/{name}/1/model.onnx" for name in ("score", "score_explain")
    ]


# --- new, changed, gone -----------------------------------------------------------------------------------


async def test_what_is_new_changed_and_gone_is_taken_up(folder: Path) -> None:
    async with gateway(folder) as (client, live):
        rewrite(folder, 10)
        handmade.write_score(folder, "more")
        shutil.rmtree(folder / "broken")
        np.testing.assert_allclose(await predicted(client), handmade.predict(handmade.X), rtol=1e-6)
        await live.scan()
        np.testing.assert_allclose(await predicted(client), handmade.predict(handmade.X) + 10, rtol=1e-6)
        np.testing.assert_allclose(await predicted(client, "more"), handmade.predict(handmade.X), rtol=1e-6)
        explained = (await client.post("/v1/models/score:explain", json=ASK)).json()
        np.testing.assert_allclose(explained["predictions"], handmade.predict(handmade.X) + 10, rtol=1e-6)
        assert set(await index(client)) == {"score", "score_explain", "more", "more_explain"}
        assert (await client.get("/v2/models/broken")).status_code == 404


async def test_a_fault_leaves_what_is_served(folder: Path) -> None:
    async with gateway(folder) as (client, live):
        sound = (folder / "score" / "1" / "model.onnx").read_bytes()
        (folder / "score" / "1" / "model.onnx").write_bytes(b"no model")
        await live.scan()
        np.testing.assert_allclose(await predicted(client), handmade.predict(handmade.X), rtol=1e-6)
        state, reason = (await index(client))["score"]
        assert state == "READY"
        assert reason.startswith("score/1/model.onnx: ONNX Runtime cannot load it")
        assert await unserved(client) == 1
        (folder / "score" / "1" / "model.onnx").write_bytes(sound)
        await live.scan()
        assert (await index(client))["score"] == ("READY", "")
        assert await unserved(client) == 0


async def test_a_broken_one_that_is_mended(folder: Path) -> None:
    (folder / "broken" / "1" / "model.onnx").rename(folder / "aside")
    async with gateway(folder) as (client, live):
        assert (await client.get("/v2/models/broken")).status_code == 503
        (folder / "aside").rename(folder / "broken" / "1" / "model.onnx")
        await live.scan()
        assert (await client.get("/v2/models/broken/ready")).status_code == 200


async def test_another_version(folder: Path) -> None:
    async with gateway(folder) as (client, live):
        (folder / "score" / "2").mkdir()
        await live.scan()  # still being copied
        assert (await index(client))["score"][1] == "score/2/model.onnx: is missing"
        shutil.copy(folder / "score" / "1" / "model.onnx", folder / "score" / "2")
        await live.scan()
        assert (await client.get("/v2/models/score")).json()["versions"] == ["2"]


def made_by(entry: Path, its_version: str) -> None:
    """Have another version of Rationale be the one that compiled it."""
    manifest = entry / "explanation.json"
    fields = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**fields, "tools": {"rationale": its_version}}))


@pytest.mark.parametrize("by", ["scan", "load"])
async def test_entries_of_other_versions_are_named_when_they_are_taken_up(
    folder: Path, caplog: pytest.LogCaptureFixture, by: str
) -> None:
    def named() -> list[str]:
        messages = [record.getMessage() for record in caplog.records]
        return [record for record in messages if record.startswith("entries that other versions compiled")]

    made_by(folder / "score_explain", "0.0.2")
    async with gateway(folder) as (client, live):
        assert named() == []  # yet: the start prints it
        shutil.copytree(folder / "score", folder / "new")
        edit(folder / "new" / "config.pbtxt", '"score"', '"new"')
        await live.scan()
        assert named() == []  # as before
        shutil.copytree(folder / "score_explain", folder / ".new")
        edit(folder / ".new" / "config.pbtxt", '"score_explain"', '"new_explain"')
        edit(folder / ".new" / "explanation.json", '"score"', '"new"')
        made_by(folder / ".new", "0.0.1")
        (folder / ".new").rename(folder / "new_explain")
        if by == "load":
            assert (await client.post("/v2/repository/models/new_explain/load")).status_code == 200
        else:
            await live.scan()
        assert named() == [
            f"entries that other versions compiled are served by {version()}: new_explain (by 0.0.1); "
            "score_explain (by 0.0.2). Compile them again, and PUT those again that the API made "
            "(MODEL/NAME), to have what this version does"
        ]
        made_by(folder / "score_explain", version())
        await live.scan()
        assert "score_explain" not in named()[1]
        made_by(folder / "new_explain", version())
        await live.scan()
        assert len(named()) == 2


@pytest.mark.usefixtures("quick")
async def test_an_explainer_of_another_version_is_named_by_its_name(tmp_path: Path, sets: Sets) -> None:
    write_plain(tmp_path / "models")
    async with administered(tmp_path, sets) as client:
        entry = (await made_ready(client, f"{PATH}/one", DEEPSHAP))["serving"]["entry"]
        assert client.app.state.gateway.plane.repository.made_by_others == ""  # type: ignore[attr-defined]
    made_by(tmp_path / "models" / entry, "0.0.1")
    async with administered(tmp_path, sets) as client:
        named = client.app.state.gateway.plane.repository.made_by_others  # type: ignore[attr-defined]
        assert f"are served by {version()}: score/one (by 0.0.1). " in named


async def test_nothing_changed_nothing_loaded(folder: Path) -> None:
    """Not what is being written either, whose name begins with a dot."""
    async with gateway(folder) as (client, live):
        before = dict(client._transport.app.state.gateway.plane.repository.entries)  # type: ignore[attr-defined]
        handmade.write_score(folder / ".rationale-new")
        (folder / "README.md").write_text("hello")
        await live.scan()
        assert client._transport.app.state.gateway.plane.repository.entries == before  # type: ignore[attr-defined]


async def test_no_request_is_lost_in_a_swap(folder: Path) -> None:
    """Those that looked up the old entry are answered by it; it is freed in the end."""
    async with gateway(folder, request_timeout_s=5) as (client, live):
        live.grace_s = 0.3
        backend = client._transport.app.state.gateway.plane.backend  # type: ignore[attr-defined]
        stop = asyncio.Event()
        answers: list[float] = []

        async def ask() -> None:
            while not stop.is_set():
                answers.append((await predicted(client))[0][0])

        asking = [asyncio.create_task(ask()) for _ in range(4)]
        for bias in range(1, 6):
            rewrite(folder, bias)
            await live.scan()
        await asyncio.sleep(0.1)
        stop.set()
        await asyncio.gather(*asking)
        first = float(handmade.predict(handmade.X)[0, 0])
        assert {round(answer - first) for answer in answers} == set(range(6))
        await until(lambda: len(backend._loaded) == 3)


async def test_two_entries_and_a_one_shot_one(tmp_path: Path) -> None:
    """The one takes the place of the two, and back; they share names, not folders."""
    x = {"name": "x", "shape": list(rows(3, FEATURES).shape), "datatype": "FP32"}
    ask = {"inputs": [{**x, "data": rows(3, FEATURES).ravel().tolist()}]}
    compile_model(mlp(), DeepShap(rows(4, FEATURES))).write(tmp_path, "m")
    async with gateway(tmp_path) as (client, live):
        before = (await client.post("/v2/models/m/explain", json=ask)).json()
        for one_shot in (True, False):
            compile_model(mlp(), DeepShap(rows(4, FEATURES)), deployment=Deployment(one_shot=one_shot)).write(
                tmp_path, "m"
            )
            await live.scan()
            assert await index(client) == {"m": ("READY", ""), "m_explain": ("READY", "")}
            assert (tmp_path / "m_explain").exists() != one_shot
            after = (await client.post("/v2/models/m/explain", json=ask)).json()
            for old, new in zip(before["outputs"], after["outputs"], strict=True):
                np.testing.assert_allclose(new["data"], old["data"], rtol=1e-4, atol=1e-5)


async def test_of_a_one_shot_entry_both_sides_are_loaded_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    references, deployment = DeepShap(rows(4, FEATURES)), Deployment(one_shot=True)
    write_plain(tmp_path)
    async with gateway(tmp_path) as (client, live):
        backend, loaded = live._backend, set[str]()
        load, unload = backend.load, backend.unload

        async def half(entry: Entry) -> None:
            if loaded:
                raise NotReadyError("no memory is left")
            await load(entry)
            loaded.add(entry.name)

        async def gone(entry: Entry) -> None:
            await unload(entry)
            loaded.discard(entry.name)

        monkeypatch.setattr(backend, "load", half)
        monkeypatch.setattr(backend, "unload", gone)
        compile_model(mlp(), references, deployment=deployment).write(tmp_path, "m")
        await live.scan()
        assert loaded == set()
        assert (await index(client))["m"] == ("UNAVAILABLE", "no memory is left")


async def test_an_unload_is_over_once_the_entry_has_changed(folder: Path) -> None:
    """For the other processes of the state too, which read it there."""
    async with gateway(folder) as (client, first), gateway(folder) as (_, second):
        assert await post(client, "score/unload") == (200, "")
        await until(lambda: "score" not in second._registry.entries)
        rewrite(folder, 10)
        for live in (first, second):
            await live.scan()
            assert "score" in live._registry.entries
        snapshot = read(first._state)
        assert not snapshot.other_rows.get("unloaded")
        for live in (first, second):
            await live.follow(snapshot)
            assert "score" in live._registry.entries


@pytest.mark.usefixtures("quick")
async def test_entries_of_explainers_are_left_to_them(tmp_path: Path, sets: Sets) -> None:
    write_plain(tmp_path / "models")
    async with administered(tmp_path, sets) as client:
        entry = (await made_ready(client, f"{PATH}/one", DEEPSHAP))["serving"]["entry"]
        live = live_of(client)
        loads = count(client, "load_duration_seconds_count", model="score", verb="explain")
        await live.scan()
        assert count(client, "load_duration_seconds_count", model="score", verb="explain") == loads
        assert_answers(await explain(client), "typical")
        for verb in ("load", "unload"):
            answer = await client.post(f"/v2/repository/models/{entry}/{verb}")
            assert answer.status_code == 409
            assert "an explainer" in answer.json()["detail"]


async def test_what_was_requested_before_does_not_undo_a_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_plain(tmp_path / "models")
    async with administered(tmp_path) as client:
        live = live_of(client)
        assert (await client.post("/v2/repository/models/score/unload")).status_code == 200
        before, write, go_on = read(live._state), live._state.write, threading.Event()

        def slowly(*changes: Any, **options: Any) -> Any:
            go_on.wait(60)
            return write(*changes, **options)

        monkeypatch.setattr(live._state, "write", slowly)
        load = asyncio.create_task(client.post("/v2/repository/models/score/load"))
        await until(lambda: "score" in live._registry.entries)  # and it is not recorded yet
        follow = asyncio.create_task(live.follow(before))
        await asyncio.sleep(0.3)
        go_on.set()
        assert (await load).status_code == 200
        await follow
        await live.follow(before)
        assert (await client.get("/v2/models/score/ready")).status_code == 200


async def test_what_others_requested_just_before_is_followed(tmp_path: Path) -> None:
    """One's own request is the last of the state then; a state of before it is not followed."""
    write_plain(tmp_path / "models")
    async with administered(tmp_path) as client:
        live = live_of(client)
        live._written = read(live._state).revision + 2
        live._state.write(("unloaded", "score", {"name": "score"}))
        await live.follow(read(live._state))
        assert "score" in live._registry.entries
        live._state.write(("loaded", "last", {"token": "another"}))
        await live.follow(read(live._state))
        assert "score" not in live._registry.entries


@pytest.mark.usefixtures("quick")
async def test_explainers_of_a_model_that_goes_and_comes_back(tmp_path: Path, sets: Sets) -> None:
    write_plain(tmp_path / "models")
    write_plain(tmp_path / "models", "other")
    async with administered(tmp_path, sets) as client:
        await made_ready(client, f"{PATH}/one", DEEPSHAP)
        assert (await client.post("/v2/repository/models/score/unload")).status_code == 200
        assert (await client.get(PATH)).status_code == 404
        assert (await client.post("/v1/models/score:explain", json=ASK)).status_code == 503
        assert (await client.post("/v2/repository/models/score/load")).status_code == 200
        assert (await settled(client, f"{PATH}/one"))["state"] == "ready"
        assert_answers(await explain(client), "typical")


@pytest.mark.usefixtures("quick")
async def test_an_explainers_entry_that_is_broken_is_made_again(tmp_path: Path, sets: Sets) -> None:
    write_plain(tmp_path / "models")
    async with administered(tmp_path, sets) as client:
        entry = (await made_ready(client, f"{PATH}/one", DEEPSHAP))["serving"]["entry"]
    (tmp_path / "models" / entry / "explanation.json").write_text("{")
    async with administered(tmp_path, sets) as client:
        assert (await settled(client, f"{PATH}/one"))["state"] == "ready"
        assert_answers(await explain(client), "typical")
        assert count(client, "unserved_entries") == 0


# --- by request -------------------------------------------------------------------------------------------


async def post(client: httpx.AsyncClient, path: str, **options: Any) -> tuple[int, str]:
    answer = await client.post(f"/v2/repository/models/{path}", **options)
    return answer.status_code, answer.json()["detail"] if answer.content else ""


async def test_load_and_unload(folder: Path) -> None:
    async with gateway(folder) as (client, live):
        assert await post(client, "score/unload") == (200, "")
        assert (await index(client))["score"] == ("UNAVAILABLE", "unloaded by request")
        assert (await client.post("/v1/models/score:predict", json=ASK)).status_code == 503
        assert await post(client, "score/unload") == (404, "no entry 'score' is served")
        await live.scan()  # it has not changed
        assert (await index(client))["score"][0] == "UNAVAILABLE"
        assert await post(client, "score/load", json={}) == (200, "")
        await predicted(client)
        rewrite(folder, 10)
        assert await post(client, "score/load", json={"parameters": {"unload_dependents": False}}) == (
            200,
            "",
        )
        np.testing.assert_allclose(await predicted(client), handmade.predict(handmade.X) + 10, rtol=1e-6)
        (folder / "score" / "1" / "model.onnx").write_bytes(b"no model")
        status, detail = await post(client, "score/load")
        assert status == 409
        assert detail.startswith("score/1/model.onnx: ONNX Runtime cannot load it")
        np.testing.assert_allclose(await predicted(client), handmade.predict(handmade.X) + 10, rtol=1e-6)


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("absent/load", {}, 404, "the repository has no entry 'absent'"),
        ("absent/unload", {}, 404, "no entry 'absent' is served"),
        (".hidden/load", {}, 404, "no entry"),
        ("%2e%2e/load", {}, 404, ""),
        ("score/load", {"content": b"["}, 400, ""),
        ("score/load", {"json": []}, 400, "must be empty or an object"),
        ("score/load", {"json": {"parameters": 1}}, 400, "must be an object"),
        (
            "score/load",
            {"json": {"parameters": {"config": "{}"}}},
            501,
            "the parameter 'config' is not supported",
        ),
        ("score/unload", {"json": {"parameters": {"unload_dependents": True}}}, 501, "unload_dependents"),
    ],
)
async def test_requests_that_make_no_sense(
    folder: Path, path: str, body: dict[str, Any], status: int, message: str
) -> None:
    (folder / ".hidden").mkdir()
    async with gateway(folder) as (client, _):
        actual, detail = await post(client, path, **body)
        assert actual == status
        assert message in detail
        await predicted(client)


async def test_who_may_load(folder: Path) -> None:
    tokens, tables = zip(*(new_key(scope, [scope], None) for scope in Scope), strict=True)
    async with gateway(folder, keys="\n".join(tables)) as (client, _):
        statuses = {
            scope: (
                await client.post("/v2/repository/models/score/load", headers={"x-api-key": token})
            ).status_code
            for scope, token in zip(Scope, tokens, strict=True)
        }
        assert statuses == {scope: 200 if scope == Scope.ADMIN else 403 for scope in Scope}


# --- before Triton ----------------------------------------------------------------------------------------


@pytest.mark.full
async def test_triton_takes_them_up_too(folder: Path, start_triton: StartTriton) -> None:
    (folder / "broken" / "1" / "model.onnx").unlink()
    names = ("score", "score_explain")
    with start_triton(folder, control_mode="explicit", load=names) as server:
        async with gateway(folder, triton=server.grpc, triton_wait_s=1) as (client, live):
            live.grace_s = 0
            assert (await index(client))["broken"] == ("UNAVAILABLE", "broken/1/model.onnx: is missing")
            rewrite(folder, 10)
            handmade.write_score(folder, "more")
            await live.scan()
            np.testing.assert_allclose(await predicted(client), handmade.predict(handmade.X) + 10, rtol=1e-6)
            np.testing.assert_allclose(
                await predicted(client, "more"), handmade.predict(handmade.X), rtol=1e-6
            )
            assert await post(client, "score/unload") == (200, "")
            with grpc_client.InferenceServerClient(server.grpc) as triton:
                await until(lambda: not triton.is_model_ready("score"))
            assert await post(client, "score/load") == (200, "")
            np.testing.assert_allclose(await predicted(client), handmade.predict(handmade.X) + 10, rtol=1e-6)


@pytest.mark.full
@pytest.mark.usefixtures("start_triton")
async def test_what_triton_cannot_load_is_listed(folder: Path) -> None:
    """Where it goes on without, as `--exit-on-error=false` has it. Nobody waits for what it has given up."""
    (folder / "broken" / "1" / "model.onnx").write_bytes(b"no model")
    ports = dict(zip(("http", "grpc", "metrics"), free_ports("127.0.0.1", 3), strict=True))
    arguments = command(folder, DEFAULT_FOLDER, "127.0.0.1", ports, "none", ())
    with started([*arguments, "--exit-on-error=false"], DEFAULT_FOLDER, folder.parent / "triton.log", folder):
        began_s = time.monotonic()
        async with gateway(folder, triton=f"127.0.0.1:{ports['grpc']}", triton_wait_s=600) as (client, _):
            assert time.monotonic() - began_s < 300
            np.testing.assert_allclose(await predicted(client), handmade.predict(handmade.X), rtol=1e-6)
            assert (await client.get("/v2/health/ready")).status_code == 200
            state, reason = (await index(client))["broken"]
            assert state == "UNAVAILABLE"
            assert reason.startswith("Triton cannot load it: Internal: ")
            assert await unserved(client) == 1


@pytest.mark.full
async def test_a_triton_that_loads_nothing_by_request(folder: Path, start_triton: StartTriton) -> None:
    """It goes on with what it has, and so does the gateway."""
    with start_triton(folder, control_mode="none") as server:
        async with gateway(folder, triton=server.grpc) as (client, _):
            rewrite(folder, 10)
            status, detail = await post(client, "score/load")
            assert status == 503
            assert "--model-control-mode=explicit" in detail
            np.testing.assert_allclose(await predicted(client), handmade.predict(handmade.X), rtol=1e-6)
            assert (await index(client))["score"][1].startswith("Triton does not load models by request")


@pytest.mark.full
async def test_entries_that_triton_does_not_serve(folder: Path, start_triton: StartTriton) -> None:
    with start_triton(folder, control_mode="explicit", load=("score",)) as server:
        async with gateway(folder, triton=server.grpc, triton_wait_s=1) as (client, _):
            await predicted(client)
            assert {name for name, (state, _) in (await index(client)).items() if state == "READY"} == {
                "score"
            }
            assert "within 1 s" in (await index(client))["score_explain"][1]


# --- the running server -----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["signal", "watch"])
def test_a_server_takes_up_what_changes(folder: Path, how: str) -> None:
    """And lists what is broken when it starts."""
    (folder / "broken" / "1" / "model.onnx").write_bytes(b"no model")
    flags = ["--watch", "0.1"] if how == "watch" else []
    with serve("--repository", str(folder), "--port", "0", *flags) as child:
        url, lines = ready_line(child)
        assert any(line.startswith("model broken is not served: broken/1/model.onnx: ONNX") for line in lines)
        rewrite(folder, 10)
        if how == "signal":
            child.send_signal(signal.SIGHUP)

        def answer_count() -> float:
            answer = patient.post(f"{url}/v1/models/score:predict", json=ASK)
            assert answer.status_code == 200
            return float(answer.json()["predictions"][0][0])

        first, end_s = float(handmade.predict(handmade.X)[0, 0]), time.monotonic() + 60
        while answer_count() != pytest.approx(first + 10):
            assert time.monotonic() < end_s
            time.sleep(0.05)
        with http.InferenceServerClient(url.removeprefix("http://")) as client:
            client.unload_model("score")
            assert not client.is_model_ready("score")
            client.load_model("score")
            assert client.is_model_ready("score")
            with pytest.raises(InferenceServerException, match=r"broken/1/model\.onnx"):
                client.load_model("broken")
        child.send_signal(signal.SIGTERM)
        assert child.wait(60) == 0
        assert "entry broken" in child.stderr.read()
