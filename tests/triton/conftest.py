"""A real Triton for the tests, fetched when the first of them needs it.

If this machine or its Python cannot have one, they skip with the reason; if it does not start, they fail."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import pytest

from scripts.system import NEEDS
from scripts.triton.fetch import FetchError, fetch
from scripts.triton.serve import TritonAddresses, TritonError
from scripts.triton.serve import run_triton as run_triton_within
from tests.needs import need
from tests.triton import by_hand
from tests.triton.entries import Linear, write_linear

run_triton = partial(run_triton_within, timeout_s=300)  # a busy machine takes its time to start it


class StartTriton(Protocol):
    """`run_triton`, as the tests call it."""

    def __call__(
        self,
        repository: Path,
        *,
        control_mode: str = "explicit",
        load: tuple[str, ...] = ("*",),
        ports: dict[str, int] | None = None,
        extra: Sequence[str] = (),
    ) -> AbstractContextManager[TritonAddresses]: ...


@dataclass(frozen=True)
class Served:
    """The server that most tests share, and what its `linear` model computes."""

    http: str
    grpc: str
    metrics: str
    repository: Path
    linear: Linear
    pid: int


@pytest.fixture(scope="session")
def start_triton() -> StartTriton:
    """Fetch the server if needed; return `run_triton`."""
    for each in NEEDS:
        if each.purpose == "Triton":
            need(each.name)
    try:
        fetch()
    except FetchError as error:
        pytest.skip(f"no Triton: {' '.join(str(error).split())}")
    return run_triton


@pytest.fixture(scope="session")
def triton_server(start_triton: StartTriton, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A running Triton with `linear`, `linear_explain` and the entries of by_hand.py."""
    repository = tmp_path_factory.mktemp("repository")
    linear = write_linear(repository)
    by_hand.write_all(repository)
    try:
        with start_triton(repository) as at:
            yield Served(at.http, at.grpc, at.metrics, repository, linear, at.pid)
    except TritonError as error:
        pytest.fail(str(error), pytrace=False)
