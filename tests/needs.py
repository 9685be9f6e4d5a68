"""What tests need beyond Python packages. A test without it skips, and says how to get it."""

import os
from pathlib import Path

import pytest

from scripts.system import NEEDS

_BY_NAME = {need.name: need for need in NEEDS}
_DATA = Path(os.environ.get("RATIONALE_TEST_DATA") or Path(__file__).parents[2] / "shared" / "data")
GERMAN, TAIWAN = _DATA / "german_credit.tsv", _DATA / "taiwan_credit_default.csv"


def need(name: str) -> str:
    """Return where a need of scripts/system.py is met, a program's path for instance; else skip."""
    place = _BY_NAME[name].find()
    if place is None:
        pytest.skip(_BY_NAME[name].missing)
    return place


def need_data(file: Path) -> Path:
    """Return GERMAN or TAIWAN if it is there; else skip."""
    if not file.is_file():
        pytest.skip(
            "real credit data is missing (UCI's German Credit Data and Default of Credit Card Clients; "
            "RATIONALE_TEST_DATA names its folder, docs/testing.md its files)"
        )
    return file
