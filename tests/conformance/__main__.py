"""python -m tests.conformance [PART OF A NAME …]: the sweep as a table."""

import sys
import warnings

from tests.conformance.cases import collect
from tests.conformance.sweep import sweep
from tests.conformance.verdicts import counts, errors, stopped, verdict


def main(parts: list[str]) -> None:
    warnings.simplefilter("ignore")
    cases = [case for case in collect() if not parts or any(word in case.name for word in parts)]
    reasons = {case.name: why for case in cases if (why := stopped(case))}
    outcomes = sweep([case for case in cases if case.name not in reasons])
    for outcome in outcomes:
        measures = ", ".join(f"{name} {value:.0e}" for name, value in outcome.measures.items())
        print(f"{verdict(outcome):8} {outcome.case:60} {measures or outcome.refused}")
        if outcome.varying and outcome.refused:
            edges = ", ".join((*outcome.varying, "->", *outcome.answers))
            print(f"{'':8} {edges} alone: {outcome.refused}")
        if errors(outcome):
            print(f"{'':8} beyond its tolerance: {errors(outcome)}")
    print(counts(len(cases), reasons, outcomes))


if __name__ == "__main__":
    main(sys.argv[1:])
