"""The load tests do what they say, in short: how fast, they tell on a machine that is left to them."""

from collections.abc import Iterator

import pytest

from loadtests import models, overload
from loadtests.client import Tally
from loadtests.processes import Server, gateway

BRIEF = overload.Profile(sustained_s=0.5, overload_s=1.0, rounds=2)


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
    outcome = overload.measure(server, load, profile=BRIEF, deadline_s=0.25, processes=2, connections=24)
    tally = outcome.tally
    assert tally.statuses[200]
    assert tally.statuses[429]
    assert set(tally.statuses) <= {200, 429, 504}
    assert (tally.broken, tally.unanswered) == (0, 0)
    assert outcome.memory_most < outcome.memory_before + (200 << 20)
    overload.report(outcome)
    printed = capsys.readouterr().out
    assert "of the peak" in printed
    assert len(outcome.peaks) == len(outcome.overloads) + 1 == BRIEF.rounds + 1
    assert f"refused   {tally.statuses[429]} with 429" in printed


def test_each_overload_is_held_against_the_loads_around_it() -> None:
    """A machine that grows slower does not make the figure better or worse."""
    peaks = [overload.Phase(rate, rate / 2) for rate in (100, 80, 60)]
    overloads = [overload.Phase(rate, rate) for rate in (81, 63)]
    outcome = overload.Outcome(peaks, overloads, 0.25, Tally(), 0, 0)
    assert outcome.peak == 80
    assert outcome.throughput == 72
    assert outcome.kept == pytest.approx(0.9)
    assert outcome.kept_each == pytest.approx([0.9, 0.9])
    assert outcome.kept_per_cpu_s == pytest.approx(1.8)
