"""Entries that earlier releases compiled: every later release serves them. Nobody compiles them again."""

import json
from pathlib import Path

import pytest

import rationale
from rationale_service.settings import Settings
from tests.service.conftest import gateway

FOLDER = Path(__file__).parent
RELEASES = sorted(path.name for path in FOLDER.iterdir() if path.name[0].isdigit())
APPLICANTS = json.loads((FOLDER.parents[2] / "examples/credit/applicants.json").read_text())


@pytest.mark.parametrize("release", RELEASES)
async def test_it_is_served(release: str, tmp_path: Path) -> None:
    async with gateway(Settings(repository=FOLDER / release, state=str(tmp_path / "state"))) as client:
        explained = (await client.post("/v1/models/credit:explain", json=APPLICANTS)).json()
        decided = (await client.post("/v1/models/credit:decide", json=APPLICANTS)).json()
    assert len(explained["explanations"]) == len(APPLICANTS["instances"])
    assert decided["decisions"][1]["decision"] == "decline"
    assert decided["decisions"][1]["reasons"][0]["code"] == "R05"


@pytest.mark.parametrize("release", RELEASES)
def test_its_manifest_names_the_release(release: str) -> None:
    assert rationale.load(FOLDER / release, "credit").manifest.tools["rationale"] == release
