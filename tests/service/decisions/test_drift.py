"""Windows of decisions, and what `GET /metrics` tells of them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rationale import DeepShap, IntegratedGradients, compile_model
from rationale.artifact.compiled import Compiled
from rationale.decisions.drift import stability_index
from rationale.decisions.rows import explained_rows, profile_of
from rationale_service.decisions import decider
from rationale_service.decisions.decider import LEAST, WINDOW, Drift
from rationale_service.observability.metrics import Metrics
from rationale_service.settings import Settings
from tests.compiler.models import parsed
from tests.service.conftest import gateway
from tests.service.observability.test_metrics import samples, scraped

FEATURES = ("income", "debt", "age")
RANDOM = np.random.default_rng(7)
X = RANDOM.normal(size=(500, 3)).astype(np.float32)
MODEL = parsed(
    "graph (float[N, 3] x) => (float[N, 1] y) { h = MatMul (x, W)  y = Sigmoid (h) }",
    {"W": np.array([[1.0], [-2.0], [0.0]], np.float32)},
)


def compiled(**profile: Any) -> Compiled:
    decision = {"output": "y", "threshold": 0.5, "adverse": "above", **profile}
    method = DeepShap(X[:300])
    model = compile_model(MODEL, method, feature_names=FEATURES, decision=decision)
    return replace(model, manifest=model.manifest.model_copy(update={"model": "model"}))


@pytest.fixture(scope="module")
def model() -> Compiled:
    return compiled()


def answers(model: Compiled, x: np.ndarray) -> list[dict[str, Any]]:
    rows = explained_rows(model.manifest, model.explain(x))
    return [{"score": row.score, "attributions": row.attributions} for row in rows]


def figures(metrics: Metrics) -> dict[str, float]:
    page = samples(metrics.exposition()[0].decode())
    return {name: value for name, value in page.items() if "_psi{" in name or "in_window" in name}


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decider, "REFRESH_S", 0.0)


def test_classes_are_made_of_the_references(model: Compiled) -> None:
    classes = profile_of(model.manifest).classes
    assert set(classes) == {"", *FEATURES}
    debts = [row.attributions["debt"] for row in explained_rows(model.manifest, model.explain(X[:300]))]
    np.testing.assert_allclose(classes["debt"].bounds, np.quantile(debts, np.arange(1, 10) / 10), atol=0.02)
    assert classes["age"].shares == (0, 1, 0)  # it has no weight


def test_classes_have_the_weights_of_the_references_that_are_explained() -> None:
    """Of more than are: each with its own, not with those of the first ones."""
    order, count = np.arange(2001), 2001
    references = np.repeat(order[:, None] / count, len(FEATURES), axis=1).astype(np.float32)
    weights = np.where(order < count // 2, 1.0, 9.0)
    decision = {"output": "y", "threshold": 0.5, "adverse": "above"}
    method = DeepShap(references, weights)
    compiled = compile_model(MODEL, method, feature_names=FEATURES, decision=decision)
    scores = compiled.run({"x": references})["y"][:, 0]
    expected = np.quantile(np.repeat(scores, weights.astype(int)), np.arange(1, 10) / 10)
    actual = profile_of(compiled.manifest).classes[""].bounds
    np.testing.assert_allclose(actual, expected, atol=0.01 * np.ptp(scores))


def test_without_references_nothing_is_watched() -> None:
    decision = {"output": "y", "threshold": 0.5, "adverse": "above"}
    alone = compile_model(MODEL, IntegratedGradients(0), feature_names=FEATURES, decision=decision)
    assert "drift of decisions" in alone.manifest.warnings[-1]
    metrics = Metrics()
    Drift(metrics).observe(alone.manifest, answers(alone, X))
    assert figures(metrics) == {}


@pytest.mark.usefixtures("at_once")
def test_a_window_of_the_last_decisions(model: Compiled) -> None:
    metrics = Metrics()
    watched = Drift(metrics)
    watched.observe(model.manifest, answers(model, X[: LEAST - 1] + 3))
    assert figures(metrics)["rationale_attribution_psi{feature=debt,model=model}"] == 0
    for _ in range(4):  # what came before is pushed out
        watched.observe(model.manifest, answers(model, X[:300]))
    calm = figures(metrics)
    assert calm["rationale_decisions_in_window{model=model}"] == WINDOW
    assert max(value for name, value in calm.items() if "_psi" in name) < 0.02
    watched.observe(model.manifest, answers(model, X[:, [0, 1, 2]] + np.array([0, 3, 5], np.float32)))
    moved = figures(metrics)
    assert moved["rationale_attribution_psi{feature=debt,model=model}"] > 0.25
    assert moved["rationale_score_psi{model=model}"] > 0.25
    assert moved["rationale_attribution_psi{feature=age,model=model}"] == 0
    last = np.concatenate([X[:300], X[100:300], X + np.array([0, 3, 5], np.float32)])[-WINDOW:]
    classes = profile_of(model.manifest).classes["debt"]
    attributed = [answer["attributions"]["debt"] for answer in answers(model, last)]
    counts = np.bincount(np.searchsorted(classes.bounds, attributed), minlength=10)
    assert moved["rationale_attribution_psi{feature=debt,model=model}"] == pytest.approx(
        stability_index(classes, counts)
    )


@pytest.mark.usefixtures("at_once")
def test_another_entry_begins_anew(model: Compiled) -> None:
    metrics = Metrics()
    watched = Drift(metrics)
    watched.observe(model.manifest, answers(model, X + 3))
    assert figures(metrics)["rationale_attribution_psi{feature=debt,model=model}"] > 0.25
    other = compiled(threshold=0.6, groups={"money": {"members": ["income", "debt"]}})
    watched.observe(other.manifest, answers(other, X[:7]))
    actual = figures(metrics)
    assert actual.pop("rationale_decisions_in_window{model=model}") == 7
    assert set(actual.values()) == {0}
    assert "rationale_attribution_psi{feature=money,model=model}" in actual


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("changed", ["profile", "explanation"])
def test_whatever_of_an_entry_is_another_begins_anew(model: Compiled, changed: str) -> None:
    """A threshold alone, or the references alone: the window says which entry it is about."""
    metrics, manifest = Metrics(), model.manifest
    decision = profile_of(manifest)
    if changed == "profile":
        changed_manifest = manifest.model_copy(
            update={"decision": decision.model_copy(update={"digest": "0" * 64, "classes": decision.classes})}
        )
    else:
        digests = manifest.digests.model_copy(update={"explanation": "0" * 64})
        changed_manifest = manifest.model_copy(update={"digests": digests})
    watched = Drift(metrics)
    for manifest_now, count, expected in (
        (manifest, 5, 5),
        (manifest, 2, 7),
        (changed_manifest, 3, 3),
        (changed_manifest, 1, 4),
    ):
        watched.observe(manifest_now, answers(model, X[:count]))
        assert figures(metrics)["rationale_decisions_in_window{model=model}"] == expected


@pytest.mark.usefixtures("at_once")
def test_a_value_at_a_bound_counts_below_it(model: Compiled) -> None:
    """As it did among the references, which the classes were made of."""
    metrics, decision = Metrics(), profile_of(model.manifest)
    shares = tuple(np.arange(1, 11) / 55)  # no two are equal: the figure tells which class has the values
    classes = decision.classes["debt"].model_copy(update={"shares": shares})
    update = {"decision": decision.model_copy(update={"classes": {**decision.classes, "debt": classes}})}
    manifest = model.manifest.model_copy(update=update)
    for k, bound in enumerate(classes.bounds):
        answer = {"score": 0.5, "attributions": dict.fromkeys(FEATURES, 0.0) | {"debt": bound}}
        Drift(metrics).observe(manifest, [answer] * LEAST)
        counts = np.bincount([k], minlength=10) * LEAST
        actual = figures(metrics)["rationale_attribution_psi{feature=debt,model=model}"]
        assert actual == pytest.approx(stability_index(classes, counts)), k


@pytest.mark.usefixtures("at_once")
async def test_the_gateway_counts_what_it_decides(model: Compiled, tmp_path: Path) -> None:
    model.write(tmp_path, "credit")
    async with gateway(Settings(repository=tmp_path, state=tmp_path / "state")) as client:
        rows = [dict(zip(FEATURES, row, strict=True)) for row in (X[:LEAST] + 2).tolist()]
        for rejected in ({"instances": [{"income": 1}]}, {"instances": []}):
            assert (await client.post("/v1/models/credit:decide", json=rejected)).status_code == 422
        assert (await client.post("/v1/models/credit:decide", json={"instances": rows})).status_code == 200
        page = await scraped(client)
    assert page["rationale_decisions_in_window{model=credit}"] == LEAST
    assert page["rationale_score_psi{model=credit}"] > 0.1
    assert page["rationale_attribution_psi{feature=income,model=credit}"] > 0.25
