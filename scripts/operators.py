"""Write the counts of each operator's tests, and docs/operators.md with them: python3 scripts/operators.py"""

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

Look up whether Rationale explains the operators of your model, by which methods, and how.
`rationale operators` prints the same table. If an operator is missing, [write a rule](own-operators.md).

| column | meaning |
|---|---|
| opsets | versions of the operator's own domain |
| kind | the kind of its rule ([multipliers](methods/deepshap.md#multipliers)); or see below |
| methods | methods that have a rule for it. *As its definition*: those that its definition allows |
| tested by | the number of samples and node tests |
| how | the formula, with its derivative or adjoint; or the definition |

- **Rewritten and inlined** operators are explained through their definition: Rationale's own, or ONNX's.
  **Unrolled** operators become the nodes that they run.
- **Samples** are inputs that pass every test of one harness (`tests/compiler/rules`): completeness in float64
  for each reference, the mean over references, finite differences, the gradient as x nears r, 0 at x = r,
  finite and complete results at ties and zeros, and float32.
- **Node tests** are the ONNX project's (`python -m tests.conformance`). All of them compile, are complete and
  have the slopes of finite differences. Those without anything to explain are not counted
  (`tests/conformance/verdicts.py` gives the reasons).

The table comes from the registry of rules (`python scripts/operators.py`); a test fails if it is old.

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
