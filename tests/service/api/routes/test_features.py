"""`GET /v1/models/{model}/features`: what a form needs to know, and who may know it."""

from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from rationale import DeepShap, TreeShap, compile_model
from rationale_service.security.keys import Scope, new_key
from rationale_service.settings import Settings
from tests.compiler.models import NAMES, mlp, parsed, rows
from tests.service.conftest import gateway

pytestmark = pytest.mark.asyncio(loop_scope="session")

PROFILE: dict[str, Any] = {
    "output": "y",
    "threshold": 0.5,
    "adverse": "below",
    "refer": [0.5, 0.52],
    "features": {
        "age": {"title": "Age", "unit": "years", "least": -3, "most": 3, "reason": "A"},
        "cards": {"categories": {"0": "none", "1": "one"}, "open": True, "reason": "A"},
        "years": {"reason": "A"},
    },
    "groups": {"means": {"members": ["income", "debt"], "title": "Means", "reason": "M"}},
    "reasons": {"A": "Age", "M": "Means"},
}


@pytest.fixture(scope="module")
def decides(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("features") / "model_repository"
    network, references = mlp((5, 16, 1), last="Sigmoid"), rows(7, 5)
    compiled = compile_model(network, DeepShap(references), feature_names=NAMES, decision=PROFILE)
    compiled.write(folder, "net")
    compile_model(network, DeepShap(references), feature_names=NAMES).write(folder, "other")
    return folder


async def test_the_profile_comes_before_the_references(decides: Path) -> None:
    async with gateway(Settings(repository=decides, audit="off")) as client:
        body = (await client.get("/v1/models/net/features")).json()
    features = {feature["name"]: feature for feature in body["features"]}
    assert list(features) == NAMES
    age, cards, debt = features["age"], features["cards"], features["debt"]
    assert (age["title"], age["unit"], age["least"], age["most"]) == ("Age", "years", -3, 3)
    assert cards["value_labels"] == {"0": "none", "1": "one"}
    assert debt["least"] == debt["quantiles"][0] == pytest.approx(rows(7, 5)[:, NAMES.index("debt")].min())
    assert len(debt["quantiles"]) == 21
    assert body["groups"] == [{"name": "means", "title": "Means", "features": ["income", "debt"]}]
    assert body["group_attributions"] == "group_attributions"
    assert body["players"] == ["means", *[name for name in NAMES if name not in ("income", "debt")]]
    assert "attributions" not in body["inputs"][0]
    assert body["decision"] == {
        "output": "y",
        "index": 0,
        "threshold": 0.5,
        "refer": [0.5, 0.52],
        "adverse": "below",
        "space": "output",
        "decision_only_features": [],
        "languages": ["en"],
        "comparisons": [],
    }


async def test_what_trees_split_is_told(tmp_path: Path) -> None:
    """A split x <= 0.1 of float32 is passed from the next number on; of two columns, one is computed."""
    text = """g (float[N, 2] x) => (float[N, 1] y) {
        first = Gather <axis = 1> (x, zero)
        second = Gather <axis = 1> (x, one)
        scaled = Add (second, second)
        read = Concat <axis = 1> (scaled, first)
        y = ai.onnx.ml.TreeEnsembleRegressor <
            n_targets = 1, nodes_treeids = [0, 0, 0, 1, 1, 1], nodes_nodeids = [0, 1, 2, 0, 1, 2],
            nodes_featureids = [1, 0, 0, 0, 0, 0], nodes_truenodeids = [1, 0, 0, 1, 0, 0],
            nodes_falsenodeids = [2, 0, 0, 2, 0, 0], nodes_values = [0.1, 0.0, 0.0, 3.0, 0.0, 0.0],
            nodes_modes = ["BRANCH_LEQ", "LEAF", "LEAF", "BRANCH_LT", "LEAF", "LEAF"],
            target_treeids = [0, 0, 1, 1], target_nodeids = [1, 2, 1, 2], target_ids = [0, 0, 0, 0],
            target_weights = [1.0, 2.0, 3.0, 4.0]> (read)
    }"""
    places = {"zero": np.array([0]), "one": np.array([1])}
    model = parsed(text, places, opsets='"" : 21, "ai.onnx.ml" : 3')
    compiled = compile_model(model, TreeShap(rows(5, 2)), feature_names=["a", "b"])
    assert dict(compiled.manifest.splits) == {
        "a": (float(str(np.nextafter(np.float32(0.1), np.float32(1)))),)
    }
    compiled.write(tmp_path, "trees")
    async with gateway(Settings(repository=tmp_path, audit="off")) as client:
        body = (await client.get("/v1/models/trees/features")).json()
    assert [feature.get("splits") for feature in body["features"]] == [[*compiled.manifest.splits["a"]], None]
    assert body["inputs"][0]["attributions"] == "x_attributions"
    assert body["players"] == []


async def test_no_row_of_the_references_is_told(decides: Path) -> None:
    async with gateway(Settings(repository=decides, audit="off")) as client:
        body = (await client.get("/v1/models/other/features")).json()
    columns = [feature["quantiles"] for feature in body["features"]]
    assert all(column == sorted(column) for column in columns)  # so that none says which go together


async def test_who_may_know_it(decides: Path, tmp_path: Path) -> None:
    keys_by_name = {name: new_key(name, [Scope(name)], None) for name in ("infer", "explain", "admin")}
    limited = new_key("limited", [Scope.EXPLAIN], None)
    (tmp_path / "keys.toml").write_text(
        "\n".join([*(text for _, text in keys_by_name.values()), limited[1], 'models = ["other"]\n'])
    )
    settings = Settings(repository=decides, keys_file=tmp_path / "keys.toml", audit="off")
    async with gateway(settings) as client:

        async def status(token: str | None, model: str = "net") -> int:
            headers = {} if token is None else {"X-API-Key": token}
            return (await client.get(f"/v1/models/{model}/features", headers=headers)).status_code

        assert await status(None) == 401
        assert await status(keys_by_name["explain"][0]) == 200
        assert await status(keys_by_name["infer"][0]) == 403
        assert await status(keys_by_name["admin"][0]) == 403
        assert await status(limited[0]) == 403
        assert await status(limited[0], "other") == 200


async def test_what_is_not_there(client: httpx.AsyncClient) -> None:
    for path in ("absent/features", "score/features?explainer=absent", "plain/features"):
        answer = await client.get(f"/v1/models/{path}")
        assert answer.status_code == 404, path
        assert answer.headers["content-type"] == "application/problem+json"
    assert (await client.get("/v1/models/score/features?explainer=compiled")).status_code == 200


async def test_an_explain_entry_by_its_own_name(client: httpx.AsyncClient) -> None:
    assert (await client.get("/v1/models/score_explain/features")).json()["model"] == "score"
