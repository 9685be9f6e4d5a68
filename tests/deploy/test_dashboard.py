"""The dashboard asks for what a running gateway counts, in queries that Prometheus takes."""

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from rationale_service.settings import Settings
from tests.docs.pages import ROOT
from tests.needs import need
from tests.service import handmade
from tests.service.conftest import gateway, quick
from tests.service.explaining import made_ready

__all__ = ["quick"]  # a fixture, found by its name

DASHBOARD = json.loads((ROOT / "deploy/grafana/rationale.json").read_text())
PANELS = {panel["title"]: panel for panel in DASHBOARD["panels"] if panel["type"] != "row"}
QUERIES = {title: panel["targets"][0]["expr"] for title, panel in PANELS.items()}
ROW = dict(zip(handmade.FEATURES, handmade.X[0].tolist(), strict=True))
# Gauges that are there when decisions have filled a window.
LATER = {"rationale_score_psi": {"model"}, "rationale_attribution_psi": {"model", "feature"}}


def filled_in(query: str) -> str:
    """As Grafana asks it, for all models."""
    return query.replace("$__rate_interval", "5m").replace("$model", ".*")


def test_panels_do_not_overlap() -> None:
    covered = set()
    for panel in DASHBOARD["panels"]:
        grid = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(grid["x"], grid["x"] + grid["w"])
            for y in range(grid["y"], grid["y"] + grid["h"])
        }
        assert not cells & covered, panel["title"]
        covered |= cells
    assert max(x for x, _ in covered) == 23
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_prometheus_takes_every_query(tmp_path: Path) -> None:
    program = need("Prometheus")
    rules = [{"record": f"query:{i}", "expr": filled_in(query)} for i, query in enumerate(QUERIES.values())]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    process = subprocess.run(
        [program, "check", "rules", str(file)], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stdout + process.stderr


@pytest.mark.usefixtures("quick")
async def test_a_running_gateway_shows_what_it_asks_for(tmp_path: Path) -> None:
    handmade.write_score(tmp_path / "models")
    async with gateway(Settings(repository=tmp_path / "models", answer_cache_bytes=1 << 20)) as client:
        for verb in ("predict", "explain", "decide", "nonsense"):
            await client.post(f"/v1/models/score:{verb}", json={"instances": [ROW]})
        await made_ready(client, "/v2/models/score/explainers/x", {"method": "gradient"})
        await client.put("/v2/models/score/canary", json={"explainer": "x", "share": 1})
        by_canary = await client.post("/v1/models/score:explain", json={"instances": handmade.X[:1].tolist()})
        assert by_canary.status_code == 200, by_canary.text
        page = (await client.get("/metrics")).text
    shown: dict[str, set[str]] = {name: set(labels) for name, labels in LATER.items()}
    for family in text_string_to_metric_families(page):
        shown.setdefault(f"{family.name}_total" if family.type == "counter" else family.name, set())
        for sample in family.samples:
            shown.setdefault(sample.name, set()).update(sample.labels)
    for title, query in QUERIES.items():
        names = set(re.findall(r"rationale_\w+", query))
        assert names, title
        labels = set(re.findall(r"(\w+)=", query))
        for grouped in re.findall(r"by \(([^)]*)\)", query):
            labels |= set(grouped.split(", "))
        for name in names:
            assert name in shown, (title, name)
            assert labels - {"instance", "le"} <= shown[name], (title, name)
