"""`rationale.testing.check_rule`: what is right passes, and each thing that is wrong is named."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import rationale
from rationale import Kind
from rationale.testing import Sample, Var, check_rule
from tests.compiler.samples import SAMPLES
from tests.kernels import own_rules

BENT = """
    <domain: "own", opset_import: ["": 17]> Bent (x) => (y) {
        square = Mul (x, x)
        y = Add (square, x)
    }
"""
SAMPLE = Sample("Bent", [Var((3, 4))], domain="own", function=BENT)
ALL = (
    "completeness",
    "ties and zeros",
    "finite differences",
    "the limit at the reference",
    "at the reference",
    "conservation",
    "float32",
    "batching",
)
Secant = Callable[..., Any] | None


@pytest.fixture(autouse=True)
def _own_table() -> Iterator[None]:
    with own_rules():
        yield


def right(op: Any, x: Any, r: Any, *_: Any) -> Any:
    """((x² + x) − (r² + r))/(x − r) = x + r + 1."""
    return op.Add(op.Add(x, r), 1.0)


def declare(
    slope: Callable[[Any, Any], Any] | None = None, secant: Secant = right, kind: Kind = Kind.POINTWISE
) -> None:
    """y = x² + x, whose slope 2x + 1 is another one where it is given."""

    @rationale.rule("Bent", domain="own", kind=kind)
    def bent(op: Any, x: Any) -> Any:
        def bent_pullback(m: Any) -> Any:
            return op.Mul(m, slope(op, x) if slope else op.Add(op.Mul(x, 2.0), 1.0))

        return op.Add(op.Mul(x, x), x), bent_pullback

    if secant is not None:
        bent.secant(secant)


def test_a_right_rule_passes_every_check() -> None:
    declare()
    assert check_rule(SAMPLE) == ALL


def test_what_a_rule_does_not_admit_is_left_out() -> None:
    declare(secant=None, kind=Kind.LOCAL)  # DeepSHAP and LRP need forms that it has not
    with pytest.warns(UserWarning, match=r"@bent.deeplift`: DeepSHAP.*; .*@bent.relevance`: LRP") as caught:
        assert check_rule(SAMPLE) == ("finite differences", "float32", "batching")
    assert caught[0].filename == __file__
    declare()
    rough = Sample("Bent", [Var((3, 4))], domain="own", function=BENT, smooth=False)
    assert check_rule(rough) == tuple(c for c in ALL if "differences" not in c and "limit" not in c)
    narrow = Sample("Bent", [Var((3, 4))], domain="own", function=BENT, float64=False)
    assert check_rule(narrow) == ("completeness", "batching")


def test_a_function_has_the_attributes_that_it_has_by_default() -> None:
    """ONNX's evaluator asks for each of them."""
    text = """<domain: "own", opset_import: ["": 21]> Bent <beta: float = 1.0> (x) => (y) {
        b = Constant <value_float: float = @beta> ()
        c = CastLike (b, x)
        square = Mul (x, x)
        scaled = Mul (x, c)
        y = Add (square, scaled)
    }"""
    declare()
    assert check_rule(Sample("Bent", [Var((3, 4))], domain="own", function=text)) == ALL


def steep(op: Any, x: Any) -> Any:
    return op.Add(op.Mul(x, 2.01), 1.0)


def misshapen(op: Any, x: Any) -> Any:
    return op.MatMul(x, np.ones((4, 3), np.float32))


def incomplete(op: Any, x: Any, r: Any, *_: Any) -> Any:
    return op.Add(op.Add(x, r), 1.001)


def cancelling(op: Any, x: Any, r: Any, y: Any, y_r: Any) -> Any:
    """The quotient, which loses its digits."""
    difference = op.Sub(x, r)
    safe = op.Where(op.Equal(difference, 0.0), 1.0, difference)
    return op.Div(op.Sub(y, y_r), safe)


def infinite(op: Any, x: Any, r: Any, y: Any, y_r: Any) -> Any:
    """0/0 at ties."""
    return op.Div(op.Sub(y, y_r), op.Sub(x, r))


@pytest.mark.parametrize(
    ("slope", "secant", "words"),
    [
        (steep, right, r"Bent-\[3,4\]: gradient: x0 at \[\d, \d, \d, \d\] is .*, where .* is due \(of t"),
        (None, incomplete, r"1 reference\(s\): the sum of attributions at .* \(of output − base v"),
        (None, cancelling, r"DeepSHAP near the reference: x0 at .* \(of gradient·Δ; tolerance 1e-06\)"),
        (None, infinite, r"Bent-\[3,4\], completeness: the completeness gap is not finite"),
        (misshapen, right, r"finite differences: ValueError\('shape"),
    ],
    ids=["slope", "incomplete", "cancels", "0/0", "shape"],
)
def test_a_wrong_rule_is_told_what_is_wrong(slope: Any, secant: Secant, words: str) -> None:
    declare(slope, secant)
    with pytest.raises(AssertionError, match=words):
        check_rule(SAMPLE)


def test_an_operator_without_a_rule() -> None:
    with pytest.raises(AssertionError, match=r"own\.Bent: .*import"):
        check_rule(SAMPLE)
    with pytest.raises(AssertionError, match=r"\bCelu: "):
        check_rule(next(s for s in SAMPLES if s.op_type == "Celu"))


def test_relevance_that_is_lost_is_noticed() -> None:
    @rationale.rule("Bent", domain="own", kind=Kind.LOCAL, traits=["conserving"])
    def bent(op: Any, x: Any) -> Any:
        return op.Add(op.Mul(x, x), x), lambda m: op.Mul(m, op.Add(op.Mul(x, 2.0), 1.0))

    @bent.relevance
    def bent_relevance(op: Any, m: Any, xs: Any, _: Any) -> Any:
        return (op.Mul(m, op.Add(xs[0], 1.5)),)

    with pytest.raises(AssertionError, match=r"LRP: .* at \[1, 2\] .*\(of the output; "):
        check_rule(SAMPLE)


SAMPLED_LABELS = (
    "Relu-[3,4] Erf-[3,4] Add-broadcast MatMul-stacked MaxPool-overlapping Softmax-peaked".split()
)


@pytest.mark.parametrize("sample", [s for s in SAMPLES if s.label in SAMPLED_LABELS], ids=lambda s: s.label)
def test_rules_of_the_project_pass_by_onnxs_evaluator_too(sample: Sample) -> None:
    assert "batching" in check_rule(sample)


def test_it_needs_neither_pytest_nor_torch() -> None:
    code = (
        "import sys; from rationale.testing import Sample, Var, check_rule\n"
        "check_rule(Sample('Relu', [Var((3,))])); print({'pytest', 'torch'} & set(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "set()\n"
