"""Reference sets over HTTP: put, read back, answered with, and deleted with all that was made of them."""

import asyncio
import io
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import orjson
import pytest

from rationale_service.errors import CompileFailedError, StateUnavailableError, UnknownResourceError
from rationale_service.models.references.store import ReferenceSets
from rationale_service.security.keys import Scope, new_key
from tests.compiler.models import rows
from tests.service.explaining import Gate, administered, compiles, made_ready, until
from tests.service.references.request_time import (
    BASE,
    EXPLAINERS,
    OTHER,
    SETS,
    R,
    ask,
    assert_explains,
    client,
    folder,
    holding,
    put,
)

__all__ = ["client", "folder"]  # fixtures, found by their names


async def test_a_set_is_put_shown_read_back_and_deleted(client: httpx.AsyncClient, folder: Path) -> None:
    answer = await put(client, "typical", R)
    assert answer.status_code == 201
    assert answer.headers["location"] == f"{SETS}/typical"
    status = answer.json()
    assert (status["rows"], status["model"], status["used_by"]) == (6, "net", [])
    assert status["inputs"] == {"x": {"datatype": "FP32", "shape": [6, 5]}}
    assert (await put(client, "typical", R)).status_code == 200
    assert (await client.get(SETS)).json() == {"reference_sets": [status]}
    assert (await client.get(f"{SETS}/typical")).json() == status
    read = await client.get(f"{SETS}/typical/rows")
    np.testing.assert_array_equal(np.load(io.BytesIO(read.content))["x"], R)
    assert read.headers["cache-control"] == "no-store"
    assert holding(folder, R)
    assert (await client.delete(f"{SETS}/typical")).status_code == 204
    assert (await client.get(f"{SETS}/typical")).status_code == 404
    assert (await client.delete(f"{SETS}/typical")).status_code == 404
    assert holding(folder, R) == []


async def test_the_spreads_of_a_set_are_told_feature_by_feature(client: httpx.AsyncClient) -> None:
    await put(client, "typical", R)
    answer = await client.get(f"{SETS}/typical/spreads")
    assert answer.headers["cache-control"] == "no-store"
    body = answer.json()
    assert (body["name"], body["rows"]) == ("typical", 6)
    assert [each["feature"] for each in body["features"]] == ["age", "income", "debt", "years", "cards"]
    for i, each in enumerate(body["features"]):
        assert len(each["quantiles"]) == 21
        ends = [each["quantiles"][k] for k in (0, -1)]
        np.testing.assert_allclose(ends, [R[:, i].min(), R[:, i].max()], rtol=1e-5)
        assert each["quantiles"] == sorted(each["quantiles"])
    assert (await client.get(f"{SETS}/nobody/spreads")).status_code == 404


async def test_the_weights_of_a_set_count_in_its_spreads(client: httpx.AsyncClient) -> None:
    heavy = {"references": R.tolist(), "weights": [0, 0, 97, 1, 1, 1]}
    assert (await client.put(f"{SETS}/heavy?model=net", json=heavy)).status_code == 201
    features = (await client.get(f"{SETS}/heavy/spreads")).json()["features"]
    for i, each in enumerate(features):
        np.testing.assert_allclose(each["quantiles"][10], R[2, i], rtol=1e-5)


async def test_a_set_is_baked_from_when_it_is_put(client: httpx.AsyncClient, quick: Gate) -> None:
    quick.close()
    answer = await put(client, "typical", R)
    assert answer.status_code == 201
    (baked,) = answer.json()["baked"]
    link = f"/v2/models/{baked.replace('/', '/explainers/')}"
    assert answer.headers["link"] == f'<{link}>; rel="status"'
    assert (await client.get(link)).json()["state"] in ("queued", "compiling")
    asking = [asyncio.create_task(ask(client, reference_set="typical")) for _ in range(3)]
    await until(lambda: quick.waiting == 1)
    assert not any(task.done() for task in asking)
    quick.open()
    answers = await asyncio.gather(*asking)
    for answer in answers:
        assert_explains(answer, R)
    assert (await client.get(link)).json()["state"] == "ready"
    assert compiles(client) == 1


async def test_one_that_failed_is_made_again_when_it_is_put_again(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: Any) -> int:
        raise CompileFailedError("it took too long")

    with monkeypatch.context() as compiles_fail:
        compiles_fail.setattr("rationale_service.models.explainers.builder.compile_entry", broken)
        await put(client, "typical", R)
        refused = await ask(client, reference_set="typical")
        assert (refused.status_code, refused.json()["detail"]) == (422, "it took too long")
    assert (await put(client, "typical", R)).status_code == 200
    assert_explains(await ask(client, reference_set="typical"), R)


async def test_a_set_that_was_away_while_it_was_compiled_is_asked_for_again(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another replica took it away and put it back: nothing is held against the content."""

    async def too_late(*_: Any) -> int:
        raise UnknownResourceError("the reference set: cannot be read: No such file or directory.")

    with monkeypatch.context() as away:
        away.setattr("rationale_service.models.explainers.builder.compile_entry", too_late)
        await put(client, "typical", R)
        assert (await ask(client, reference_set="typical")).status_code == 503
    assert_explains(await ask(client, reference_set="typical"), R)


async def test_a_large_named_set_is_waited_for(client: httpx.AsyncClient) -> None:
    many = rows(50, 5, seed=8)
    await put(client, "many", many)
    assert_explains(await ask(client, reference_set="many"), many)


async def test_deletion_takes_along_what_was_baked(client: httpx.AsyncClient, folder: Path) -> None:
    await put(client, "typical", R)
    spec = {"method": "deepshap", "reference_set": "typical", "targets": "all"}
    await made_ready(client, f"{EXPLAINERS}/own", spec)
    assert_explains(await ask(client, explainer="own"), R)
    assert holding(folder / "models", R)
    refused = await client.delete(f"{SETS}/typical")
    assert refused.status_code == 409
    assert "net/own" in refused.json()["detail"]
    assert_explains(await ask(client, explainer="own"), R)
    replaced = await put(client, "typical", OTHER)
    assert replaced.status_code == 409
    assert (await client.delete(f"{SETS}/typical?force=true")).status_code == 204
    assert holding(folder, R) == []
    assert (await client.get(f"{EXPLAINERS}/own")).status_code == 404
    assert (await ask(client, explainer="own")).status_code == 404
    assert_explains(await ask(client), BASE)


async def test_a_content_with_two_names_stays_until_both_are_gone(client: httpx.AsyncClient) -> None:
    await put(client, "one", R)
    await put(client, "two", R)
    await made_ready(
        client, f"{EXPLAINERS}/own", {"method": "deepshap", "reference_set": "one", "targets": "all"}
    )
    assert (await client.delete(f"{SETS}/one")).status_code == 204
    assert_explains(await ask(client, explainer="own"), R)
    assert (await client.delete(f"{SETS}/two")).status_code == 409


async def test_the_artifact_of_a_deleted_explainer_goes_too(client: httpx.AsyncClient, folder: Path) -> None:
    await put(client, "typical", R)
    spec = {"method": "deepshap", "reference_set": "typical", "targets": "all"}
    await made_ready(client, f"{EXPLAINERS}/own", spec)
    assert (await client.delete(f"{EXPLAINERS}/own")).status_code == 204
    assert holding(folder, R)
    assert (await client.delete(f"{SETS}/typical")).status_code == 204
    assert holding(folder, R) == []


async def test_json_by_curls_own_content_type(client: httpx.AsyncClient) -> None:
    curl = {"content-type": "application/x-www-form-urlencoded"}
    rows_sent = orjson.dumps(R.tolist())
    sent = await client.put(f"{SETS}/typical", params={"model": "net"}, content=rows_sent, headers=curl)
    assert sent.status_code == 201, sent.text
    spec = orjson.dumps({"method": "deepshap", "reference_set": "typical"})
    assert (await client.put(f"{EXPLAINERS}/own", content=spec, headers=curl)).status_code == 202
    table = await client.put(f"{SETS}/other", params={"model": "net"}, content=b"1,2,3,4,5", headers=curl)
    assert table.status_code == 400
    assert "Content-Type" in table.json()["detail"]


WRONG: dict[str, tuple[str, str, bytes, dict[str, str], int]] = {
    "a pickle": ("a", "application/x-npy", b"\x80\x04K\x01.", {"model": "net"}, 422),
    "another content type": ("a", "text/html", b"1,2", {"model": "net"}, 415),
    "no model": ("a", "text/csv", b"1,2,3,4,5", {}, 422),
    "an unknown model": ("a", "text/csv", b"1,2,3,4,5", {"model": "nobody"}, 404),
    "a name that goes up": ("..%2f..%2fa", "text/csv", b"1,2,3,4,5", {"model": "net"}, 404),
    "a strange name": ("a%00", "text/csv", b"1,2,3,4,5", {"model": "net"}, 422),
    "a name that is the gateway's": ("~a", "text/csv", b"1,2,3,4,5", {"model": "net"}, 422),
    "nonsense for force": ("a", "text/csv", b"1,2,3,4,5", {"model": "net", "force": "perhaps"}, 422),
}


@pytest.mark.parametrize("case", WRONG)
async def test_an_upload_that_is_refused(client: httpx.AsyncClient, folder: Path, case: str) -> None:
    name, kind, body, query, status = WRONG[case]
    answer = await client.put(f"{SETS}/{name}", content=body, params=query, headers={"content-type": kind})
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert not list(folder.rglob("*.npz"))


async def test_an_upload_of_too_many_bytes(folder: Path, quick: Gate) -> None:  # noqa: ARG001
    async with administered(folder, max_reference_bytes=1000) as client:
        assert (await put(client, "large", rows(100, 5))).status_code == 413
        assert (await put(client, "small", rows(2, 5))).status_code in (201, 413)


async def test_sets_are_there_after_a_restart(folder: Path, quick: Gate) -> None:  # noqa: ARG001
    async with administered(folder) as client:
        before = (await put(client, "typical", R)).json()
    async with administered(folder) as client:
        assert (await client.get(f"{SETS}/typical")).json() == before
        assert_explains(await ask(client, reference_set="typical"), R)


async def test_what_is_being_deleted_is_made_nothing_of(client: Any, quick: Gate) -> None:
    """A request that comes while a set is deleted does not bring back what was baked from it."""
    await put(client, "typical", R)
    spec = {"method": "deepshap", "reference_set": "typical", "targets": "all"}
    await made_ready(client, f"{EXPLAINERS}/own", spec)
    explainers = client.app.state.gateway.explainers
    forget, going, requested = explainers.forget, asyncio.Event(), asyncio.Event()

    async def slowly(digest: str) -> None:
        going.set()
        await requested.wait()
        await forget(digest)

    explainers.forget = slowly
    deleting = asyncio.create_task(client.delete(f"{SETS}/typical?force=true"))
    await going.wait()
    assert (await ask(client, reference_set="typical")).status_code == 404
    assert (await client.put(f"{EXPLAINERS}/late", json=spec)).status_code == 404
    requested.set()
    assert (await deleting).status_code == 204
    assert quick.waiting == 0
    assert holding(client.app.state.gateway.settings.repository.parent, R) == []


async def test_only_an_administrator_reads_people_back(folder: Path, quick: Gate) -> None:  # noqa: ARG001
    token, table = new_key("analyst", [Scope.EXPLAIN], None)
    async with administered(folder, keys=table) as client:
        client.headers["authorization"] = f"Bearer {token}"
        for path in (SETS, f"{SETS}/typical", f"{SETS}/typical/rows"):
            assert (await client.get(path)).status_code == 403
        assert (await put(client, "typical", R)).status_code == 403
        assert (await client.delete(f"{SETS}/typical")).status_code == 403
        assert_explains(await ask(client), BASE)


async def test_a_deletion_that_breaks_off_is_finished_by_the_next(
    folder: Path,
    quick: Gate,  # noqa: ARG001
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The set is listed until nothing of it is left, so that somebody can ask again."""
    spec = {"method": "deepshap", "reference_set": "typical", "targets": "all"}
    async with administered(folder) as client:
        await put(client, "typical", R)
        await made_ready(client, f"{EXPLAINERS}/own", spec)
        with monkeypatch.context() as broken:
            broken.setattr(ReferenceSets, "remove", _no_space)
            answer = await client.delete(f"{SETS}/typical?force=true")
            assert answer.status_code == 503
            assert "No space" not in answer.json()["title"]
        assert holding(folder / "models", R) == []
        assert (await client.get(f"{SETS}/typical")).json()["used_by"] == []
    async with administered(folder) as client:
        assert (await client.delete(f"{SETS}/typical")).status_code == 204
        assert holding(folder, R) == []


def _no_space(*_: Any) -> None:
    raise StateUnavailableError("the records cannot be written: No space left on device")
