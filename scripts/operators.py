"""Counts of each operator's tests, and docs/operators.md, which they go into: python3 scripts/operators.py"""

import json
from collections import Counter
from pathlib import Path

from rationale.cli.operator_table import full_name, operator_table
from tests.compiler.samples import SAMPLES
from tests.conformance.cases import collect
from tests.conformance.verdicts import stopped

ROOT = Path(__file__).parents[1]
TESTED, PAGE = ROOT / "compiler" / "rationale" / "tested.json", ROOT / "docs" / "operators.md"
HEAD = """# Operators

Generated from the registry by `python scripts/operators.py`; a test fails when it is stale.
`rationale operators` prints the same. [Methods](methods/deepshap.md#multipliers) explains the kinds.
Rewritten operators and inlined ones (by ONNX's own definition) are explained through what defines them, by
every method that serves its operators; of unrolled ones the computation is written out. Opsets are those of
the operator's own domain.

*Samples* are inputs of the operator that pass every test of one harness (`tests/compiler/rules`): complete
in float64 for each reference, the mean over references, equal to finite differences, the gradient as x nears
r, nothing at x = r, finite and complete at ties and zeros, right in float32. *Node tests* are the ONNX
project's own (`python -m tests.conformance`): all compile, complete and with the slopes of finite
differences, but for those with nothing to explain (`tests/conformance/verdicts.py` says why).

| operator | opsets | kind | methods | tested by | how |
|---|---|---|---|---|---|
"""


def counts() -> str:
    """Return compiler/rationale/tested.json: for each operator its samples and its node tests."""
    samples = Counter(full_name(s.domain, s.op_type) for s in SAMPLES)
    swept = Counter(c.operator for c in collect() if not stopped(c))
    table = {name: [samples[name], swept[name]] for name in sorted({*samples, *swept})}
    rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(pair)}" for name, pair in table.items())
    return f"{{\n{rows}\n}}\n"


def text() -> str:
    """Return the whole page."""
    rows = (
        (row.name, row.opsets, row.kind, row.methods, row.tested, row.how.replace("|", r"\|"))
        for row in operator_table()
    )
    return HEAD + "".join(f"| {' | '.join(row)} |\n" for row in rows)


if __name__ == "__main__":
    TESTED.write_text(counts(), encoding="utf-8")
    PAGE.write_text(text(), encoding="utf-8")
