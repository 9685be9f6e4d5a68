"""The sweep is run once; its counts stand at the end of the test report."""

import pytest

from tests.conformance.cases import Case, collect
from tests.conformance.evaluate import Outcome
from tests.conformance.sweep import sweep
from tests.conformance.verdicts import counts, stopped

SUMMARY = pytest.StashKey[str]()


@pytest.fixture(scope="session")
def cases() -> dict[str, Case]:
    return {case.name: case for case in collect()}


@pytest.fixture(scope="session")
def reasons(cases: dict[str, Case]) -> dict[str, str]:
    return {name: why for name, case in cases.items() if (why := stopped(case))}


@pytest.fixture(scope="session")
def outcomes(
    cases: dict[str, Case], reasons: dict[str, str], request: pytest.FixtureRequest
) -> list[Outcome]:
    found = sweep([case for name, case in cases.items() if name not in reasons])
    request.config.stash[SUMMARY] = counts(len(cases), reasons, found)
    return found


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if SUMMARY in config.stash:
        terminalreporter.write_line(f"conformance: {config.stash[SUMMARY]}")
