"""`GET /v1/models/{model}/features`: what a form needs to know, and who may know it."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from rationale import DeepShap, compile_model
from rationale_service.security.keys import Scope, new_key
from rationale_service.settings import Settings
from tests.compiler.models import NAMES, mlp, rows
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
    made = compile_model(network, DeepShap(references), feature_names=NAMES, decision=PROFILE)
    made.write(folder, "net")
    compile_model(network, DeepShap(references), feature_names=NAMES).write(folder, "other")
    return folder


async def test_the_profile_comes_before_the_references(decides: Path) -> None:
    async with gateway(Settings(repository=decides, audit="off")) as client:
        told = (await client.get("/v1/models/net/features")).json()
    features = {one["name"]: one for one in told["features"]}
    assert list(features) == NAMES
    age, cards, debt = features["age"], features["cards"], features["debt"]
    assert (age["title"], age["unit"], age["least"], age["most"]) == ("Age", "years", -3, 3)
    assert cards["value_labels"] == {"0": "none", "1": "one"}
    assert debt["least"] == debt["quantiles"][0] == pytest.approx(rows(7, 5)[:, NAMES.index("debt")].min())
    assert len(debt["quantiles"]) == 21
    assert told["groups"] == [{"name": "means", "title": "Means", "features": ["income", "debt"]}]
    assert told["decision"] == {
        "output": "y",
        "index": 0,
        "threshold": 0.5,
        "refer": [0.5, 0.52],
        "adverse": "below",
        "space": "output",
        "decision_only_features": [],
        "comparisons": [],
    }


async def test_no_row_of_the_references_is_told(decides: Path) -> None:
    async with gateway(Settings(repository=decides, audit="off")) as client:
        told = (await client.get("/v1/models/other/features")).json()
    columns = [one["quantiles"] for one in told["features"]]
    assert all(column == sorted(column) for column in columns)  # so that none says which go together


async def test_who_may_know_it(decides: Path, tmp_path: Path) -> None:
    made = {name: new_key(name, [Scope(name)], None) for name in ("infer", "explain", "admin")}
    limited = new_key("limited", [Scope.EXPLAIN], None)
    (tmp_path / "keys.toml").write_text(
        "\n".join([*(text for _, text in made.values()), limited[1], 'models = ["other"]\n'])
    )
    settings = Settings(repository=decides, keys_file=tmp_path / "keys.toml", audit="off")
    async with gateway(settings) as client:

        async def status(token: str | None, model: str = "net") -> int:
            headers = {} if token is None else {"X-API-Key": token}
            return (await client.get(f"/v1/models/{model}/features", headers=headers)).status_code

        assert await status(None) == 401
        assert await status(made["explain"][0]) == 200
        assert await status(made["infer"][0]) == 403
        assert await status(made["admin"][0]) == 403
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
