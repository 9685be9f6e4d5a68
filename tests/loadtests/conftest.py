"""A small workload, prepared once, and the gateway on it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.cases import BenchmarkCase
from loadtests.load.measure import Bench
from loadtests.load.prepare import prepare
from loadtests.load.workloads import PROFILES, Workload
from loadtests.systems.variants import OURS, SystemSettings, serving

# A request has four times its p99: a minute, which no busy machine uses up.
SMALL = Workload("small", BenchmarkCase("credit", (24,), 5, 8), p99_s=15.0, batch=3)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("workload")
    prepare(SMALL, place)
    return place


@pytest.fixture(scope="session")
def bench(folder: Path) -> Iterator[Bench]:
    variant = SystemSettings(OURS, threads=1, workers=1)
    with serving(variant, folder) as server:
        yield Bench(SMALL, folder, PROFILES["tiny"], print, folder / "pages", variant, server)
