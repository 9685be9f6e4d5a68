"""The sweep is run once; its counts stand at the end of the test report."""

import pytest

from tests.conformance.cases import Case, collect
from tests.conformance.evaluate import Outcome
from tests.conformance.sweep import sweep
from tests.conformance.verdicts import stopped

COUNTS = "conformance"


@pytest.fixture(scope="session")
def cases() -> dict[str, Case]:
    return {case.name: case for case in collect()}


@pytest.fixture(scope="session")
def reasons(cases: dict[str, Case]) -> dict[str, str]:
    return {name: why for name, case in cases.items() if (why := stopped(case))}


@pytest.fixture(scope="session")
def outcomes(cases: dict[str, Case], reasons: dict[str, str]) -> list[Outcome]:
    return sweep([case for name, case in cases.items() if name not in reasons])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What the first test noted, in whichever process it ran."""
    for report in (r for kind in ("passed", "failed") for r in terminalreporter.stats.get(kind, ())):
        for name, text in report.user_properties:
            if name == COUNTS:
                terminalreporter.write_line(f"{name}: {text}")
