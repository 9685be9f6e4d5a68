"""What is expected of each node test, reviewed by hand."""

import fnmatch
from collections import Counter
from enum import StrEnum

from tests.conformance.cases import ConformanceCase
from tests.conformance.evaluate import CaseOutcome
from tests.tolerances import CONFORMANCE_32, CONFORMANCE_64, FINITE_DIFFERENCE_ALONG

TOLERANCES = {
    "value 32": CONFORMANCE_32,
    "base 32": CONFORMANCE_32,
    "completeness 32": CONFORMANCE_32,
    "gradient 32": CONFORMANCE_32,
    "completeness 64": CONFORMANCE_64,
    "gradient 64": FINITE_DIFFERENCE_ALONG,
}

# Node tests in which no float of the output is a differentiable function of a float of the input.
STOPPED = {
    "test_bernoulli*": "draws random numbers",
    "test_training_dropout*": "draws random numbers",
    "test_mod_float_edge_cases_fmod_0_*": "infinities and divisions by 0: the output is no number",
    "test_range_*": "the length of the output depends on values",
    "test_unique_*": "the length of the output depends on values",
    "test_ada*": "a step of training; ONNX Runtime has no such operator",
    "test_*momentum*": "a step of training; ONNX Runtime has no such operator",
    "test_melweightmatrix": "the output depends on rounded frequencies alone",
    "test_castlike_*INT*": "the input holds no floats; of the other one, the type alone is read",
    "test_castlike_FLOAT8*": "the input holds codes of floats; of the other one, the type alone is read",
    "test_castlike_FLOAT4*": "the input holds codes of floats; of the other one, the type alone is read",
    "test_ai_onnx_ml_binarizer": "a step: its output is 0 or 1",
    "test_ai_onnx_ml_tree_ensemble*": "steps: trees have methods of their own",
}

# Node tests that ONNX Runtime, whose answer is explained, answers otherwise than ONNX's evaluator. In float32
# they are measured as all others are; in float64 there is nothing to measure with.
DISPUTED = {
    "test_resize_downsample_scales_linear_align_corners": "length · scale in whole pixels, or in parts",
    "test_resize_downsample_scales_cubic_align_corners": "length · scale in whole pixels, or in parts",
}

# Float inputs or outputs that cannot take part, by operator: the others of the same node are explained.
PARTLY = {
    "Resize": "its scales and its region decide what shape the output has",
    "Upsample": "its scales decide what shape the output has",
    "OneHot": "the depth decides what shape the output has, and indices are places",
    "Dropout": "the ratio is not read outside of training",
}


class Verdict(StrEnum):
    EXACT = "exact"
    STOPPED = "stopped"
    MISSING = "missing"
    WRONG = "wrong"


def stopped(case: ConformanceCase) -> str:
    """Why a case is nothing to explain; empty if it is."""
    if not case.tensors_only:
        return "sequences and optionals are no tensors"
    reasons = (why for names, why in STOPPED.items() if fnmatch.fnmatch(case.name, names))
    return next(reasons, "" if all(case.filled) else "no elements")


def verdict(outcome: CaseOutcome) -> Verdict:
    if not outcome.varying:
        return Verdict.MISSING
    return Verdict.WRONG if errors(outcome) else Verdict.EXACT


def errors(outcome: CaseOutcome) -> dict[str, float]:
    """The measures that are beyond their tolerance."""
    exceeded = {n: v for n, v in outcome.measures.items() if n in TOLERANCES and not v <= TOLERANCES[n]}
    return {n: v for n, v in exceeded.items() if n.endswith("32")} if outcome.case in DISPUTED else exceeded


def counts(cases: int, reasons: dict[str, str], outcomes: list[CaseOutcome]) -> str:
    """One paragraph of numbers."""
    counts = Counter(verdict(o) for o in outcomes)
    compiled = counts[Verdict.EXACT] + counts[Verdict.WRONG]
    lines = [
        f"{cases} node tests take and return floats: {compiled} compiled, {counts[Verdict.EXACT]} exact, "
        f"{len(reasons)} stopped with reason, {counts[Verdict.MISSING]} missing"
    ]
    lines += [f"  {n:4} stopped: {why}" for why, n in Counter(reasons.values()).most_common()]
    return "\n".join(lines)
