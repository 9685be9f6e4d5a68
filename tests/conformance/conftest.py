"""The sweep is run once, for all tests of this folder."""

import pytest

from tests.conformance.cases import ConformanceCase, collect
from tests.conformance.evaluate import CaseOutcome
from tests.conformance.sweep import sweep
from tests.conformance.verdicts import stopped


@pytest.fixture(scope="session")
def cases() -> dict[str, ConformanceCase]:
    return {case.name: case for case in collect()}


@pytest.fixture(scope="session")
def reasons(cases: dict[str, ConformanceCase]) -> dict[str, str]:
    return {name: why for name, case in cases.items() if (why := stopped(case))}


@pytest.fixture(scope="session")
def outcomes(cases: dict[str, ConformanceCase], reasons: dict[str, str]) -> list[CaseOutcome]:
    return sweep([case for name, case in cases.items() if name not in reasons])
