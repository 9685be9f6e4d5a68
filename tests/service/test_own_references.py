"""References that come with a request, or are named by it; and reference sets over HTTP."""

import asyncio
import contextlib
import functools
import io
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import pytest_asyncio
from tritonclient.grpc import service_pb2 as pb

from compiler import DeepShap, IntegratedGradients, OpenReferences, compile_model
from service.errors import StateUnavailableError
from service.explainers import workshop
from service.grpc_call import Call
from service.grpc_methods import model_infer
from service.reference_sets import ReferenceSets
from service.security import Scope, new_key
from tests.compiler.models import mlp, rows
from tests.service import handmade as made
from tests.service.explaining import SECONDS, Gate, administered, made_ready, until
from tests.service.own_time import skipping

SETS = "/v2/reference-sets"
EXPLAINERS = "/v2/models/net/explainers"
X, R, OTHER = rows(3, 5, seed=1), rows(6, 5, seed=2), rows(4, 5, seed=3) + 1
BASE = rows(5, 5, seed=4)  # of the explainer that is there
ATTRIBUTIONS = "x_attributions"


@functools.cache
def _expected(references: bytes, weights: bytes | None) -> dict[str, np.ndarray]:
    given = np.frombuffer(references, np.float32).reshape(-1, 5)
    w = None if weights is None else np.frombuffer(weights)
    return compile_model(mlp(), DeepShap(given, w), targets="all").explain(X)


def expected(references: np.ndarray, weights: Any = None) -> dict[str, np.ndarray]:
    """Of X."""
    return _expected(references.tobytes(), None if weights is None else np.array(weights, float).tobytes())


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with `net` and its explainer."""
    folder = tmp_path_factory.mktemp("compiled")
    names = ["age", "income", "debt", "years", "cards"]
    compile_model(mlp(), DeepShap(BASE), targets="all", feature_names=names).write(folder / "models", "net")
    return folder


@pytest.fixture
def folder(tmp_path: Path, compiled: Path) -> Path:
    shutil.copytree(compiled / "models", tmp_path / "models")
    return tmp_path


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Gate:
    gate = Gate()
    monkeypatch.setattr(workshop, "compile_entry", gate)
    return gate


@pytest_asyncio.fixture
async def client(folder: Path, quick: Gate) -> AsyncIterator[httpx.AsyncClient]:  # noqa: ARG001
    async with administered(folder, answer_cache_bytes=1 << 20) as client:
        yield client


def tensor(name: str, array: np.ndarray) -> dict[str, Any]:
    datatype = {"float32": "FP32", "float64": "FP64"}[str(array.dtype)]
    return {"name": name, "shape": list(array.shape), "datatype": datatype, "data": array.ravel().tolist()}


async def ask(
    client: httpx.AsyncClient, *more: dict[str, Any], x: np.ndarray = X, **parameters: Any
) -> httpx.Response:
    body = {"inputs": [tensor("x", x), *more], "parameters": parameters}
    return await client.post("/v2/models/net/explain", json=body)


def arrays(answer: httpx.Response) -> dict[str, np.ndarray]:
    assert answer.status_code == 200, answer.text
    return {o["name"]: np.array(o["data"]).reshape(o["shape"]) for o in answer.json()["outputs"]}


def assert_explains(answer: httpx.Response, references: np.ndarray, weights: Any = None) -> None:
    wanted = expected(references, weights)
    for name, array in arrays(answer).items():
        if name != "completeness_gap":
            np.testing.assert_allclose(array, wanted[name], rtol=1e-5, atol=1e-6, err_msg=name)


async def put(client: httpx.AsyncClient, name: str, references: np.ndarray, **query: str) -> httpx.Response:
    buffer = io.BytesIO()
    np.savez(buffer, x=references)
    return await client.put(
        f"{SETS}/{name}",
        content=buffer.getvalue(),
        params={"model": "net", **query},
        headers={"content-type": "application/x-npz"},
    )


def served(client: Any) -> set[str]:
    """Entries on the disk that explain `net`, beside the one that was compiled."""
    folder = client.app.state.settings.repository
    return {path.name for path in folder.iterdir()} - {"net", "net_explain"}


def holding(folder: Path, references: np.ndarray) -> list[Path]:
    """Files anywhere below that hold the first row, as bytes; they may come and go meanwhile."""
    row = references[0].tobytes()
    while True:
        with contextlib.suppress(FileNotFoundError):
            return [path for path in folder.rglob("*") if path.is_file() and row in path.read_bytes()]


# --- references in a request ------------------------------------------------------------------------------


async def test_a_request_may_bring_its_references(client: httpx.AsyncClient) -> None:
    assert_explains(await ask(client), BASE)
    for own in (R, OTHER):
        answer = await ask(client, tensor("x_references", own))
        assert_explains(answer, own)
        assert len(answer.json()["parameters"]["references"]) == 64
    assert_explains(await ask(client), BASE)


async def test_with_weights(client: httpx.AsyncClient) -> None:
    weights = np.array([1.0, 0, 2, 3, 1, 1])
    answer = await ask(client, tensor("x_references", R), tensor("reference_weights", weights))
    assert_explains(answer, R, weights)


async def test_a_set_that_comes_back_is_baked(client: httpx.AsyncClient, folder: Path) -> None:
    own = tensor("x_references", R)
    first = await ask(client, own)
    (opened,) = served(client)
    assert holding(folder, R) == []
    assert_explains(await ask(client, own), R)
    await until(lambda: len(served(client)) == 2)

    async def is_baked() -> bool:
        answer = await ask(client, own)
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
    async with administered(folder, max_unnamed_reference_sets=1) as client:
        for own in (R, OTHER):
            for _ in range(2):
                await ask(client, tensor("x_references", own))
            await until(lambda own=own: bool(holding(folder, own)))
        await until(lambda: not holding(folder, R))
        assert holding(folder, OTHER)


async def test_nothing_is_kept_where_that_is_off(folder: Path, quick: Gate) -> None:  # noqa: ARG001
    async with administered(folder, bake_references_after=0) as client:
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
    wanted = compile_model(mlp(), IntegratedGradients(R, steps=4), targets="all").explain(X)
    np.testing.assert_allclose(answer[ATTRIBUTIONS], wanted[ATTRIBUTIONS], rtol=1e-5, atol=1e-6)


async def test_over_v1(client: httpx.AsyncClient) -> None:
    names = ["age", "income", "debt", "years", "cards"]
    named = [dict(zip(names, row, strict=True)) for row in R.tolist()]
    body = {"instances": X.tolist(), "references": named, "reference_weights": [1, 0, 2, 3, 1, 1]}
    answer = (await client.post("/v1/models/net:explain", json=body)).json()
    wanted = expected(R, [1, 0, 2, 3, 1, 1])
    told = [[t["attributions"][name] for name in names] for t in answer["explanations"][1]["targets"]]
    np.testing.assert_allclose(told, wanted[ATTRIBUTIONS][1], rtol=1e-5, atol=1e-6)
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
    "too large a number": ([tensor("x_references", R.astype(np.float64) * 1e300)], {}, "no FP32"),
    "both": ([tensor("x_references", R)], {"reference_set": "typical"}, "not both"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_what_is_refused(client: httpx.AsyncClient, name: str) -> None:
    more, parameters, told = REFUSED[name]
    answer = await ask(client, *more, **parameters)
    assert answer.status_code == 422, answer.text
    assert told in answer.json()["detail"]
    assert served(client) == set()


async def test_a_set_that_is_not_there(client: httpx.AsyncClient) -> None:
    assert (await ask(client, reference_set="nobody")).status_code == 404


async def test_a_method_without_references(tmp_path: Path, quick: Gate) -> None:  # noqa: ARG001
    made.write_gradient(tmp_path / "models")
    async with administered(tmp_path) as client:
        x, r = np.ones((1, 2), np.float32), np.zeros((2, 2), np.float32)
        body = {"inputs": [tensor("x", x), tensor("x_references", r)]}
        answer = await client.post("/v2/models/slope/explain", json=body)
        assert answer.status_code == 422
        assert "without references" in answer.json()["detail"]
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


# --- reference sets over HTTP -----------------------------------------------------------------------------


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


async def test_a_named_set_answers_open_first_and_baked_then(client: httpx.AsyncClient) -> None:
    await put(client, "typical", R)
    seen = set()
    async with asyncio.timeout(SECONDS):
        while len(seen) < 2:
            answer = await ask(client, reference_set="typical")
            assert_explains(answer, R)
            seen.add(answer.json()["parameters"]["explanation"])
            await asyncio.sleep(0.02)


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


async def test_an_artefact_that_is_kept_aside_goes_too(client: httpx.AsyncClient, folder: Path) -> None:
    await put(client, "typical", R)
    spec = {"method": "deepshap", "reference_set": "typical", "targets": "all"}
    await made_ready(client, f"{EXPLAINERS}/own", spec)
    assert (await client.delete(f"{EXPLAINERS}/own")).status_code == 204
    assert holding(folder, R)
    assert (await client.delete(f"{SETS}/typical")).status_code == 204
    assert holding(folder, R) == []


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


@pytest.mark.parametrize("what", WRONG)
async def test_an_upload_that_is_refused(client: httpx.AsyncClient, folder: Path, what: str) -> None:
    name, kind, body, query, status = WRONG[what]
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
    explainers = client.app.state.explainers
    forget, going, asked = explainers.forget, asyncio.Event(), asyncio.Event()

    async def slowly(digest: str) -> None:
        going.set()
        await asked.wait()
        await forget(digest)

    explainers.forget = slowly
    deleting = asyncio.create_task(client.delete(f"{SETS}/typical?force=true"))
    await going.wait()
    assert (await ask(client, reference_set="typical")).status_code == 404
    assert (await client.put(f"{EXPLAINERS}/late", json=spec)).status_code == 404
    asked.set()
    assert (await deleting).status_code == 204
    assert quick.waiting == 0
    assert holding(client.app.state.settings.repository.parent, R) == []


async def test_over_grpc(folder: Path, quick: Gate) -> None:  # noqa: ARG001
    """The same tensors and parameter as over HTTP."""
    async with administered(folder) as client:
        plane = client.app.state.plane  # type: ignore[attr-defined]
        message = pb.ModelInferRequest(model_name="net_explain")
        for name, array in (("x", X), ("x_references", R)):
            message.inputs.add(name=name, datatype="FP32", shape=array.shape)
            message.raw_input_contents.append(array.tobytes())
        answer = await model_infer(Call(plane, message, None))
        given = {o.name: raw for o, raw in zip(answer.outputs, answer.raw_output_contents, strict=True)}
        attributions = np.frombuffer(given[ATTRIBUTIONS], np.float32).reshape(3, 3, 5)
        np.testing.assert_allclose(attributions, expected(R)[ATTRIBUTIONS], rtol=1e-5, atol=1e-6)
        assert answer.parameters["references"].string_param


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
