"""What stays of explainers: over a restart, on a full disk, within bounds, and until it is forgotten."""

import asyncio
import contextlib
import errno
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import httpx
import numpy as np
import pytest
from sqlalchemy import event

from rationale_service.errors import (
    CompileFailedError,
    ConflictError,
    StateUnavailableError,
    UnknownModelError,
)
from rationale_service.models.explainers.records import (
    HIDDEN,
    Artifact,
    ExplainerRecord,
    RecordStore,
    Stage,
    StateSnapshot,
)
from rationale_service.models.explainers.replica_sync import ExplainerTasks, ReplicaSync
from rationale_service.models.explainers.spec import ExplainerSpec
from rationale_service.repository.registry import read_repository
from rationale_service.state.state import State
from tests.service import handmade
from tests.service.explaining import (
    ATTRIBUTIONS,
    DEEPSHAP,
    GRADIENT,
    OTHER,
    PATH,
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
    write_plain,
)

LONG = ["long feature name " * 100 + str(i) for i in range(4)]  # several pages of a database


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
async def test_an_entry_that_somebody_deleted_is_made_again(folder: Path, sets: Sets) -> None:
    async with administered(folder, sets) as client:
        entry = (await made_ready(client, f"{PATH}/one", DEEPSHAP))["serving"]["entry"]
    (folder / "models" / entry).rename(folder / "elsewhere")
    async with administered(folder, sets) as client:
        assert (await settled(client, f"{PATH}/one"))["state"] == "ready"
        assert_answers(await explain(client), "typical")


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("restarted", [True, False])
async def test_a_model_that_changed_is_explained_anew(folder: Path, sets: Sets, restarted: bool) -> None:
    async with administered(folder, sets) as client:
        old = await made_ready(client, f"{PATH}/one", DEEPSHAP)
        write_again(folder, 3.0)
        refused = await client.put(f"{PATH}/two", json=GRADIENT)
        assert refused.status_code == 409
        assert "POST /v2/repository/models/score/load" in refused.json()["detail"]
        assert_answers(await explain(client), "typical")
        if not restarted:
            assert (await client.post("/v2/repository/models/score/load")).status_code == 200
            await assert_is_anew(client, old)
    async with administered(folder, sets) as client:
        await assert_is_anew(client, old)


async def assert_is_anew(client: httpx.AsyncClient, old: dict[str, Any]) -> None:
    new = await settled(client, f"{PATH}/one")
    assert new["state"] == "ready"
    assert new["serving"]["digest"] != old["serving"]["digest"]
    answer = await explain(client)
    np.testing.assert_allclose(answer["x_attributions"], 3 * ATTRIBUTIONS["typical"], rtol=1e-5, atol=1e-4)


def write_again(folder: Path, scale: float) -> None:
    path = folder / "models" / "score"
    path.rename(folder / "before")
    write_plain(folder / "models", scale=scale)


@pytest.mark.usefixtures("quick")
async def test_a_full_disk_at_publication(folder: Path, sets: Sets, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with administered(folder, sets) as client:
        good = await made_ready(client, f"{PATH}/one", DEEPSHAP)
        with monkeypatch.context() as patched:
            patched.setattr("rationale_service.models.explainers.artifact_store.shutil.move", full)
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
        state = explainers_of(client)._artifacts.state
        with full(state):
            answer = await client.put(f"{PATH}/one", json={**OTHER, "features": LONG})
            assert answer.status_code == 503
            assert "disk is full" in answer.json()["detail"]
        assert (await client.get(f"{PATH}/one")).json() == good
        assert_answers(await explain(client), "typical")
        assert (await made_ready(client, f"{PATH}/one", OTHER))["error"] is None


@contextlib.contextmanager
def full(state: State) -> Iterator[None]:
    """The database cannot grow."""
    engine = state.open()._get_engine()

    def limit(pages: int, connection: Any) -> None:
        connection.execute(f"PRAGMA max_page_count = {pages}")

    bounded, free = (lambda value, *_: limit(1, value)), (lambda value, *_: limit(1_000_000, value))
    event.listen(engine, "checkout", bounded)  # SQLite takes what it has
    try:
        yield
    finally:
        event.remove(engine, "checkout", bounded)
        event.listen(engine, "checkout", free)


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
        answers = await asyncio.gather(*(explain(client, explainer=n) for n in ("other", "gradient") * 6))
        for answer, name in zip(answers, ("other", "gradient") * 6, strict=True):
            assert_answers(answer, name)
        ready = await client.get(f"/v2/models/{listed[0]['serving']['entry']}/ready")
        assert ready.status_code == 200  # it is loaded for whoever asks
    async with administered(folder, sets, max_loaded_explainers=2) as client:
        assert count(client, "loaded_explainers") == 2
        for name in ("typical", "other", "gradient"):
            assert_answers(await explain(client, explainer=name), name)


@pytest.mark.parametrize(
    ("sizes", "most_bytes", "gone"),
    [
        ([], 0, []),
        ([5], 4, []),  # the only one stays, however large
        ([5], 5, []),
        ([5, 3], 8, []),
        ([5, 3], 7, [1]),
        ([5, 3], 0, [1]),
        ([5, 3, 2], 9, [2]),
        ([5, 3, 2], 7, [2, 1]),
        ([9, 0], 8, [1]),  # used before one that fills all
    ],
)
def test_the_least_recently_used_are_too_many(
    sizes: list[int], most_bytes: int, gone: list[int], folder: Path, tmp_path: Path
) -> None:
    """Of those that no person asked for, the one used last first."""
    named = ExplainerRecord("score", "named", 1, {}, "named", None, False, Stage.READY, serving="named")
    hidden = [
        replace(named, name=f"{HIDDEN}{i}", digest=str(i), serving=str(i), updated_s=9.0 - i)
        for i in range(len(sizes))
    ]
    artifacts = [
        Artifact(record.digest, "entry", "score", "m", None, size)
        for record, size in zip([named, *hidden], [10**9, *sizes], strict=True)
    ]
    base = read_repository(folder / "models")
    store = RecordStore(State(tmp_path / "state"), base, [*hidden[::-1], named], artifacts)
    assert [int(record.digest) for record in store.surplus(most_bytes)] == gone


@pytest.mark.parametrize(
    ("stage", "serving", "used"),
    [
        (Stage.QUEUED, None, {"coming"}),  # about to be made
        (Stage.QUEUED, "old", {"coming", "old"}),
        (Stage.READY, "coming", {"coming"}),
        (Stage.FAILED, "old", {"old"}),  # what failed is not coming
        (Stage.FAILED, None, set()),
    ],
)
def test_an_artifact_is_in_use_until_nothing_is_to_answer_by_it(
    stage: Stage, serving: str | None, used: set[str], folder: Path, tmp_path: Path
) -> None:
    record = ExplainerRecord("score", "one", 1, {}, "coming", None, False, stage, serving=serving)
    store = RecordStore(State(tmp_path / "state"), read_repository(folder / "models"), [record], [])
    assert {digest for digest in ("coming", "old", "other") if store.in_use(digest)} == used


@pytest.mark.parametrize(
    ("asked", "serving", "used"),
    [
        ("new", None, {"new"}),
        (None, "of old", {"old"}),  # another one was asked for since, which has none
        ("new", "of old", {"new", "old"}),
        ("new", "of new", {"new"}),
        (None, "of none", set()),
        (None, "gone", set()),
    ],
)
def test_a_reference_set_is_used_by_what_is_asked_for_and_by_what_answers(
    asked: str | None, serving: str | None, used: set[str], folder: Path, tmp_path: Path
) -> None:
    """None of both may be deleted: people's explanations are of it."""
    one = ExplainerRecord("score", "one", 1, {}, "coming", asked, False, Stage.READY, serving=serving)
    made = [
        Artifact(f"of {name or 'none'}", f"entry {name}", "score", "m", name, 1)
        for name in ("new", "old", None)
    ]
    store = RecordStore(State(tmp_path / "state"), read_repository(folder / "models"), [one], made)
    assert {name for name in ("new", "old") if one in store.using(name)} == used


@pytest.mark.parametrize(
    ("others", "name", "lacks"),
    [
        ([], "new", True),
        ([], f"{HIDDEN}new", False),  # no person asked for it
        ([{"is_default": True}], "new", False),
        ([{"wants_default": True}], "new", False),  # it is being made
        ([{}], "new", True),
        ([{"model": "other", "is_default": True}], "new", True),
        ([{"name": "new", "is_default": True}], "new", True),  # it is this one
    ],
)
def test_the_first_explainer_of_a_model_is_its_default(
    others: list[dict[str, Any]], name: str, lacks: bool, tmp_path: Path
) -> None:
    write_plain(tmp_path / "models")
    known = ExplainerRecord("score", "known", 1, {}, "d", None, False, Stage.QUEUED)
    records = [replace(known, **other) for other in others]
    store = RecordStore(State(tmp_path / "state"), read_repository(tmp_path / "models"), records)
    assert store.lacks_default(("score", name)) is lacks


def follower(store: RecordStore, plane: Any = None) -> ReplicaSync:
    return ReplicaSync(
        plane or MagicMock(), MagicMock(), store, ExplainerTasks(), lambda _: None, lambda _: None
    )


@pytest.mark.parametrize(
    ("mine", "theirs", "generation", "due"),
    [(9.0, 5.0, 1, 9.0), (5.0, 9.0, 1, 9.0), (5.0, 5.0, 1, 5.0), (9.0, 5.0, 2, 5.0)],
)
async def test_an_explainer_was_used_last_when_any_process_used_it(
    mine: float, theirs: float, generation: int, due: float, tmp_path: Path
) -> None:
    """Else what one process uses all the time would make room for others; a newer one begins anew."""
    write_plain(tmp_path / "models")
    known = ExplainerRecord("score", "one", 1, {}, "d", None, False, Stage.READY, updated_s=mine)
    store = RecordStore(State(tmp_path / "state"), read_repository(tmp_path / "models"), [known])
    other = replace(known, generation=generation, updated_s=theirs)
    await follower(store)._adopt(StateSnapshot(2, [other], [], [], {}))
    assert store.records["score", "one"] == replace(other, updated_s=due)


@pytest.mark.parametrize(
    ("found", "due"),
    [
        ("d", True),
        ("other", False),  # it is of another version of the model
        (UnknownModelError("gone"), False),
        (ConflictError("not loaded as it is now"), False),
        (StateUnavailableError("later"), True),  # the compile meets it, and tells
    ],
)
async def test_only_an_explainer_of_the_model_that_is_here_is_made_here(
    found: str | Exception, due: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_plain(tmp_path / "models")
    one = ExplainerRecord("score", "one", 1, {"method": "gradient"}, "d", None, False, Stage.QUEUED)
    store = RecordStore(State(tmp_path / "state"), read_repository(tmp_path / "models"), [one])
    answer = {"side_effect": found} if isinstance(found, Exception) else {"return_value": found}
    monkeypatch.setattr(store, "digest", AsyncMock(**answer))
    assert await follower(store)._is_of_here(one) is due


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("attempts", "is_last"), [(0, False), (1, False), (2, True), (3, True)])
async def test_how_often_an_explainer_is_tried(
    folder: Path, sets: Sets, attempts: int, is_last: bool
) -> None:
    """What ended two gateways is not tried by a third; the next PUT begins anew."""
    async with administered(folder, sets) as client:
        await made_ready(client, f"{PATH}/one", DEEPSHAP)
        explainers = explainers_of(client)
        before = explainers.store.records["score", "one"]
        tried = replace(before, attempts=attempts)
        await explainers.sync.exclusively(partial(explainers.store.save, tried))
        second_attempt = explainers.sync.exclusively(partial(explainers._count_attempt, tried))
        if is_last:
            with pytest.raises(CompileFailedError, match="ended 3 times"):
                await second_attempt
        else:
            assert (await second_attempt).attempts == attempts + 1
        await made_ready(client, f"{PATH}/one", OTHER)
        assert explainers.store.records["score", "one"].attempts == 0


@pytest.mark.full
@pytest.mark.usefixtures("quick")
async def test_what_requests_have_made_is_bounded(folder: Path, sets: Sets) -> None:
    """The least recently used go; what a person asked for is not counted."""
    specs = [ExplainerSpec(targets=[i]) for i in range(3)]
    digest = sets.names["typical"]
    async with administered(folder, sets, grace_s=0.2) as client:
        named = await made_ready(client, f"{PATH}/named", DEEPSHAP)
        first = await explainers_of(client).wait_for_entry("score", specs[0], digest)
        size = sum(p.stat().st_size for p in first.model_path.parent.parent.rglob("*") if p.is_file())
    async with administered(folder, sets, grace_s=0.2, max_artifact_bytes=2 * size + 500) as client:
        second = await explainers_of(client).wait_for_entry("score", specs[1], digest)
        assert (await explainers_of(client).wait_for_entry("score", specs[0], digest)).name == first.name
        third = await explainers_of(client).wait_for_entry("score", specs[2], digest)
        remaining_entries = [named["serving"]["entry"], first.name, third.name]
        await until(lambda: names(folder / "models") == sorted(["score", *remaining_entries]))
        assert second.name not in remaining_entries
        assert compiles(client) == 2
        assert (await explainers_of(client).wait_for_entry("score", specs[1], digest)).name == second.name


@pytest.mark.usefixtures("quick")
async def test_a_reference_set_is_forgotten_with_all_made_of_it(folder: Path, sets: Sets) -> None:
    async with administered(folder, sets, grace_s=0.2) as client:
        explainers = explainers_of(client)
        await made_ready(client, f"{PATH}/one", DEEPSHAP)
        await made_ready(client, f"{PATH}/two", {**DEEPSHAP, "targets": [1]})
        await made_ready(client, f"{PATH}/three", OTHER)
        await client.delete(f"{PATH}/two")
        await until(lambda: len(names(folder / "models")) == 3)
        assert explainers.users(sets.names["typical"]) == ["score/one"]
        await explainers.forget(sets.names["typical"])
        assert [e["name"] for e in (await client.get(PATH)).json()["explainers"]] == ["three"]
        assert len(names(folder / "models")) == 2
        rows = handmade.X[0].tobytes()
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
