"""What becomes of a gateway without what it depends on, in short."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from loadtests.checks import dependencies
from loadtests.checks.dependencies import fired, main, measure

BY_NAME = {dependency.name: dependency for dependency in dependencies.DEPENDENCIES}
UNAVAILABLE = "rationale_audit_unavailable"


def test_alerts_fire_by_what_is_scraped() -> None:
    assert fired([{UNAVAILABLE: 0.0}] * 4) == set()
    assert fired([{UNAVAILABLE: 0.0}, *[{UNAVAILABLE: 1.0}] * 3]) == {"RationaleCannotDecide"}


def test_a_fault_that_nothing_tells_of_is_no_success(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def row(name: dependencies.Dependency, fault: str) -> dependencies.FaultReport:
        texts = ("200", "200", "200 in 0.01 s", "200 in 0.01 s", "none", "none")
        return dependencies.FaultReport(name.name, fault, *texts, 1.0, fault == "killed")

    monkeypatch.setattr(dependencies, "measure", row)
    assert main(["--only", "Redis", "--faults", "killed"]) == 0
    assert main(["--only", "Redis", "--faults", "killed", "frozen"]) == 1
    out, err = capsys.readouterr()
    assert "| Redis: rates | frozen | 200 | 200 |" in out
    assert err == "not told, or too slow to stop: Redis: rates, frozen\n"


@pytest.mark.full
def test_two_that_are_frozen() -> None:
    """Each is waited for half a minute, both at once."""
    dependent = [BY_NAME["PostgreSQL: audit trail"], BY_NAME["Redis: rates"]]
    with ThreadPoolExecutor() as pool:
        rows = [*pool.map(measure, dependent, ["frozen", "frozen"])]
    assert all(row.is_good for row in rows), rows


@pytest.mark.slow
def test_each_that_is_killed_or_frozen() -> None:
    assert main(["--faults", "killed", "frozen"]) == 0
