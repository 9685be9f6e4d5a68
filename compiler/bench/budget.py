"""How many references fit a memory budget: measured, each system in processes of its own."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, sqrt

from compiler.bench.apart import explaining, last_words, start, written
from compiler.bench.cases import OURS, Case, Settings
from compiler.bench.process import ProcessDiedError, Tell, in_a_process
from compiler.bench.subjects import compile_ours, make_subject
from compiler.errors import RationaleError

MOST = 1000  # references; nobody is asked for more
STEP = 4
PRECISION = 1.1  # the next larger number that was tried and did not fit is at most so many times as large
HEADROOM = 2  # times the budget, above which a process is stopped


@dataclass(frozen=True)
class Largest:
    """Of one network.

    Attributes:
        references: the most by system, of those that were tried; 0: not even one fits.
        left_out: why a system explains no such network at all.
    """

    case: Case
    references: dict[str, int]
    left_out: dict[str, str]

    @property
    def label(self) -> str:
        """The network, whatever K is."""
        return self.case.label_without_references


def largest(fits: Callable[[int], bool], most: int = MOST) -> int:
    """The largest number that fits, to `PRECISION`; `most` where that does."""
    if not fits(1):
        return 0
    if fits(most):
        return most
    low, high = 1, most
    while low * STEP < high and fits(low * STEP):
        low *= STEP
    high = min(high, low * STEP)
    while high - low > 1 and high > low * PRECISION:
        middle = min(max(ceil(sqrt(low * high)), low + 1), high - 1)
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def limits(
    cases: Sequence[Case], settings: Settings, tell: Tell = lambda *_: None
) -> tuple[list[Largest], list[str]]:
    """Of each network among the cases, with its first number of rows; and what could not be measured."""
    found, failed = [], []
    for case in {case.model: case for case in reversed(cases)}.values():
        try:
            one: Largest = in_a_process(limit, case, settings, tell=tell)
            found.append(one)
            failed += [f"{case.model}: no {name}: {why}" for name, why in one.left_out.items()]
        except ProcessDiedError as error:
            failed.append(f"{case.model}: no limits: {error}")
    return found[::-1], failed


def limit(case: Case, settings: Settings, tell: Tell) -> Largest:
    """Of one network."""
    budget = settings.memory_budget or 0
    found: dict[str, int] = {}
    left_out: dict[str, str] = {}
    for name in explaining(settings):

        def fits(references: int, name: str = name) -> bool:
            tell(f"{case.model}, {name}: {references} references", len(found), len(explaining(settings)))
            try:
                held = peak(name, replace(case, references=references), settings, HEADROOM * budget)
            except (ProcessDiedError, RationaleError):
                return False
            return held <= budget

        why = None if name == OURS else why_not(name, case, settings)
        if why is None:
            found[name] = largest(fits)
        else:
            left_out[name] = why
    return Largest(case, found, left_out)


def why_not(name: str, case: Case, settings: Settings) -> str | None:
    """Why a peer cannot explain the network even with one reference and all memory; None where it can."""
    try:
        peak(name, replace(case, references=1), settings)
    except ProcessDiedError as error:
        return last_words(error)
    return None


def peak(name: str, case: Case, settings: Settings, most_bytes: int | None = None) -> int:
    """Bytes at the most.

    Raises:
        ProcessDiedError: it ended without an answer, as where it asks for more than `most_bytes`.
        RationaleError: the compiler says that the budget cannot be kept.
    """
    subject = make_subject(case, settings.seed)
    compiled = compile_ours(subject, settings.threads, settings.memory_budget) if name == OURS else None
    with written(subject, compiled) as folder:
        return start(name, folder, settings.threads, most_bytes).peak_bytes
