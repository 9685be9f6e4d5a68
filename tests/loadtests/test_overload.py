"""The load tests do what they say, in short: how fast, they tell on a machine that is left to them."""

from collections.abc import Iterator

import pytest

from loadtests import models, overload
from loadtests.processes import Server, gateway

SECONDS = (0.5, 1.5)


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, models.Load]]:
    repository = tmp_path_factory.mktemp("network")
    load = models.write_network(repository, width=256, references=200)
    with gateway(repository, "--grpc-port", "off") as server:
        yield server, load


@pytest.mark.slow  # a machine that is busy otherwise offers too little load to be refused
def test_under_overload_everyone_is_answered_or_refused(
    network: tuple[Server, models.Load], capsys: pytest.CaptureFixture[str]
) -> None:
    server, load = network
    outcome = overload.measure(server, load, seconds=SECONDS, deadline_s=0.25, processes=2, connections=24)
    tally = outcome.tally
    assert tally.statuses[200]
    assert tally.statuses[429]
    assert set(tally.statuses) <= {200, 429, 504}
    assert (tally.broken, tally.unanswered) == (0, 0)
    assert outcome.memory_most < outcome.memory_before + (200 << 20)
    overload.report(outcome)
    printed = capsys.readouterr().out
    assert "of the peak" in printed
    assert f"refused   {tally.statuses[429]} with 429" in printed
