"""Reasons by other references in the same call, of a linear model; and the entries by which it is told."""

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import pytest_asyncio
from fastapi import FastAPI
from pyarrow import csv

from rationale import Comparisons, DeepShap, compile_model
from rationale.references.draws import bootstrap_samples
from rationale.schema.manifest import FILE_NAME
from rationale_service.app import create_app, create_backend
from rationale_service.decisions.decider import Decider, Drift
from rationale_service.settings import Settings
from tests.compiler.decisions.linear import (
    BANKRUPT,
    DRAWS,
    EVERYBODY,
    MODEL,
    NEAR,
    PROFILE,
    SCORES,
    SEED,
    N,
    X,
    codes,
)
from tests.compiler.models import NAMES
from tests.service import patient
from tests.service.conftest import serving
from tests.service.decisions.portfolio.test_portfolio import decide as decide_file
from tests.service.decisions.portfolio.test_portfolio import lines
from tests.service.decisions.test_decider import MemoryTrail
from tests.service.in_process import client_of

INSTANCES = [
    dict(zip(NAMES, x, strict=True)) | {"bankruptcies": int(bankrupt)}
    for x, bankrupt in zip(X.tolist(), BANKRUPT, strict=True)
]
ADVERSE = np.flatnonzero((SCORES >= 0.5) & ~BANKRUPT)


def write(folder: Path, name: str = "m", **comparisons: Any) -> None:
    chosen_comparisons = Comparisons(**comparisons) if comparisons else None
    compile_model(
        MODEL, DeepShap(NEAR), feature_names=NAMES, decision=PROFILE, comparisons=chosen_comparisons
    ).write(folder, name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    write(folder, baselines={"all_applicants": DeepShap(EVERYBODY)}, draws=DRAWS, seed=SEED)
    write(folder, "alone")
    return folder


def app_of(folder: Path) -> FastAPI:
    settings = Settings(repository=folder)
    return create_app(settings, create_backend(settings))


@pytest.fixture(scope="module")
def trail() -> MemoryTrail:
    return MemoryTrail()


@pytest.fixture(scope="module")
def url(folder: Path, trail: MemoryTrail) -> Iterator[str]:
    app = app_of(folder)
    app.state.gateway.decider = Decider(app.state.gateway.plane, trail, Drift(app.state.gateway.metrics))
    with serving(app) as address:
        yield f"http://{address}"


def decide(url: str, instances: list[Any], model: str = "m", **members: Any) -> httpx.Response:
    body = {"instances": instances} | members
    return patient.post(f"{url}/v1/models/{model}:decide", json=body)


def test_which_reasons_stay(url: str, trail: MemoryTrail) -> None:
    decisions = decide(url, INSTANCES, stability=True).json()["decisions"]
    drawn = bootstrap_samples(NEAR, None, DRAWS, SEED)
    for i in ADVERSE:
        by_draw = [codes(X[i], references) for references in drawn]
        survival_by_code = {reason["code"]: reason["survival"] for reason in decisions[i]["reasons"]}
        assert list(survival_by_code) == codes(X[i], NEAR)
        for code, survival in survival_by_code.items():
            assert survival == {
                "all_applicants": code in codes(X[i], EVERYBODY),
                "draws": pytest.approx(np.mean([code in each for each in by_draw])),
            }
    shares = [reason["survival"]["draws"] for i in ADVERSE for reason in decisions[i]["reasons"]]
    assert 0 < min(shares) < max(shares) == 1
    assert [record.answer for record in trail.records][-N:] == decisions
    for i in np.flatnonzero(BANKRUPT):  # declined whoever is compared with
        assert [("survival" in reason) for reason in decisions[i]["reasons"]] == [False]


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_a_file_tells_the_same(url: str, folder: Path, tmp_path: Path, kind: str) -> None:
    due = decide(url, INSTANCES, stability=True).json()["decisions"]
    rows, save = tmp_path / "rows.csv", tmp_path / f"d.{kind}"
    rows.write_text(
        "\n".join([",".join(INSTANCES[0]), *(",".join(map(str, row.values())) for row in INSTANCES)])
    )
    words = ["m", "--input", rows, "--save", save, "--repository", folder, "--stability"]
    code, _, fault = decide_file(*words)
    assert code == 0, fault
    survivals = [{r["code"]: r["survival"] for r in each["reasons"] if "survival" in r} for each in due]
    if kind == "jsonl":
        found = [each["decision"]["reasons"] for each in lines(save)]
        assert [{r["code"]: r["survival"] for r in each if "survival" in r} for each in found] == survivals
    else:
        cells = csv.read_csv(save)["reason_survival"].to_pylist()
        assert [json.loads(cell) if cell else {} for cell in cells] == survivals
    code, _, fault = decide_file("alone", *words[1:])
    assert (code, "compiled without comparisons" in fault) == (2, True)


def test_nothing_else_changes_and_nobody_else_pays(url: str) -> None:
    with_stability = decide(url, INSTANCES, stability=True).json()["decisions"]
    for plain in (decide(url, INSTANCES), decide(url, INSTANCES, stability=False)):
        for first, other in zip(plain.json()["decisions"], with_stability, strict=True):
            without = [{k: v for k, v in reason.items() if k != "survival"} for reason in other["reasons"]]
            assert first | {"id": ""} == other | {"id": "", "reasons": without}


@pytest.mark.parametrize(
    ("model", "stability", "status", "words"),
    [
        ("alone", True, 422, "model 'alone' was compiled without comparisons. Compile it with --compare"),
        ("m", 1, 400, "stability must be true or false"),
        ("m", "yes", 400, "stability must be true or false"),
    ],
)
def test_refused(url: str, trail: MemoryTrail, model: str, stability: Any, status: int, words: str) -> None:
    before = len(trail.records)
    answer = decide(url, INSTANCES[:2], model, stability=stability)
    assert (answer.status_code, words in answer.json()["detail"]) == (status, True)
    assert len(trail.records) == before


# -- entries -------------------------------------------------------------------------------------------


def comparisons_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("m_explain_*"))


def test_they_are_explanations_of_the_model_and_no_models(url: str, folder: Path) -> None:
    assert patient.get(f"{url}/v1/models").json() == {"models": ["alone", "m"], "explainable": ["alone", "m"]}
    names = comparisons_in(folder)
    assert len(names) == 1 + DRAWS
    index = patient.post(f"{url}/v2/repository/index").json()
    assert {*names} < {entry["name"] for entry in index}
    rows = [{name: row[name] for name in NAMES} for row in INSTANCES[:3]]
    answers = [
        patient.post(f"{url}/v1/models/{name}:explain", json={"instances": rows}).json() for name in names
    ]
    bases = {answer["explanations"][0]["base_value"] for answer in answers}
    assert len(bases) == len(names)
    explanation = patient.post(f"{url}/v1/models/m:explain", json={"instances": rows}).json()
    assert explanation["explanations"][0]["base_value"] not in bases
    decided = decide(url, INSTANCES[:3], names[0]).json()["decisions"]  # by what decides for the model
    expected = decide(url, INSTANCES[:3]).json()["decisions"]
    assert [decision | {"id": ""} for decision in decided] == [decision | {"id": ""} for decision in expected]


@pytest_asyncio.fixture
async def app(tmp_path: Path) -> AsyncIterator[FastAPI]:
    write(tmp_path, draws=2)
    app = app_of(tmp_path)
    async with app.router.lifespan_context(app):
        await app.state.gateway.loading
        yield app


def names_told(answer: httpx.Response) -> set[str]:
    reasons = [reason for decision in answer.json()["decisions"] for reason in decision["reasons"]]
    return {name for reason in reasons for name in reason.get("survival", ())}


async def test_a_new_compile_takes_the_place_of_all(tmp_path: Path, app: FastAPI) -> None:
    async with client_of(app) as client:
        old = comparisons_in(tmp_path)
        body = {"instances": INSTANCES, "stability": True}
        before = await client.post("/v1/models/m:decide", json=body)
        write(tmp_path, baselines={"everybody": DeepShap(EVERYBODY)})
        await app.state.gateway.live.scan()
        after = await client.post("/v1/models/m:decide", json=body)
        assert [names_told(before), names_told(after)] == [{"draws"}, {"everybody"}]
        gone = await client.get(f"/v2/models/{old[0]}")
        assert gone.status_code == 404
        (new,) = comparisons_in(tmp_path)
        (tmp_path / new).rename(tmp_path.parent / f"{tmp_path.name}-gone")
        await app.state.gateway.live.scan()
        broken = await client.post("/v1/models/m:decide", json=body)
        assert broken.status_code == 503
        words = f"the comparison 'everybody' of model 'm', entry '{new}', is not loaded"
        assert words in broken.json()["detail"]
        plain = await client.post("/v1/models/m:decide", json={"instances": INSTANCES})
        assert plain.status_code == 200


async def test_a_comparison_by_another_explanation_is_none(tmp_path: Path, app: FastAPI) -> None:
    """Of its name, but compiled anew: reasons would be told by another model or other references."""
    file = tmp_path / "m_explain" / FILE_NAME
    manifest = json.loads(file.read_text())
    manifest["decision"]["comparisons"][0]["explanation"] = "0" * 64
    file.write_text(json.dumps(manifest))
    await app.state.gateway.live.scan()
    async with client_of(app) as client:
        answer = await client.post("/v1/models/m:decide", json={"instances": INSTANCES, "stability": True})
        assert answer.status_code == 503
        assert "not loaded: " in answer.json()["detail"]


@pytest.mark.slow
def test_a_restart_keeps_them_beside_explainers_of_the_api(tmp_path: Path) -> None:
    write(tmp_path, draws=2)
    names = comparisons_in(tmp_path)
    for start in range(2):
        with serving(app_of(tmp_path)) as address:
            url = f"http://{address}"
            explainer = f"{url}/v2/models/m/explainers/slope"
            if start == 0:
                patient.put(explainer, json={"method": "gradient"})
                assert patient.settled(explainer)["state"] == "ready"
            answer = decide(url, INSTANCES, stability=True)
            assert answer.status_code == 200
            assert {*names} < {*comparisons_in(tmp_path)}
            assert patient.get(f"{url}/v1/models").json() == {"models": ["m"], "explainable": ["m"]}
