"""Checks for authors of rules, and adapters for metrics of explanations.

The project's own checks of operators' rules:

    from rationale.testing import Sample, Var, check_rule

    check_rule(Sample("Snake", [Var((3, 4))], {"alpha": 0.7}, domain="example", function=DEFINITION))

Our explanations under Quantus's and captum's metrics: see `rationale.testing.metrics`.
"""

from rationale.testing.harness import check_rule
from rationale.testing.metrics import captum_explain, quantus_explain, torch_module
from rationale.testing.sample import Sample, Var

__all__ = ["Sample", "Var", "captum_explain", "check_rule", "quantus_explain", "torch_module"]
