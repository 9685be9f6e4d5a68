"""The rule, held to what Rationale's own rules are held to: pytest examples/own_operator."""

import own_operator.operators  # noqa: F401  (declares the rule, as the entry point does)
from make_model import DEFINITION

from rationale.testing import Sample, Var, check_rule


def test_snake() -> None:
    sample = Sample("Snake", [Var((3, 4))], {"alpha": 0.7}, domain="own", function=DEFINITION)
    assert "conservation" in check_rule(sample)
