"""The rescale rule of a ReLU and of smooth groups, where float32 is hard: ties, zeros, any scale."""

from collections.abc import Sequence
from itertools import pairwise, product
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.inliner import inline_local_functions
from onnx.reference import ReferenceEvaluator

from rationale import DeepShap, compile_model
from tests.compiler.models import parsed, rows
from tests.references.interpreter import run64
from tests.tolerances import FINITE_DIFFERENCE, FUSED_64

VALUES = [0.0, 1e-7, -1e-7, 1e-3, -1e-3, 0.5, -0.5, 1.0, -1.0, 30.0, -30.0]
PAIRS = np.array(list(product(VALUES, VALUES)), np.float32).T


def chain(op_types: Sequence[str], width: int, opset: int = 21) -> onnx.ModelProto:
    names = ["x", *(f"inner_{i}" for i in range(1, len(op_types))), "y"]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", width]) for n in "xy")
    nodes = [helper.make_node(o, [a], [b]) for o, (a, b) in zip(op_types, pairwise(names), strict=True)]
    graph = helper.make_graph(nodes, "chain", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def alone(op_types: Sequence[str], x: np.ndarray, r: np.ndarray, opset: int = 21) -> np.ndarray:
    """Each feature's attribution to its own output, by one reference."""
    targets = list(range(x.size))
    compiled = compile_model(chain(op_types, x.size, opset), DeepShap(r[None]), targets=targets)
    return np.diag(compiled.explain(x[None])["x_attributions"][0])


# the last of them gets a multiplier that all references share, another one takes another form
relus = pytest.mark.parametrize("relus", [["Relu"], ["Relu", "Relu"]], ids=["shared", "varying"])


@pytest.mark.parametrize("scale", [1e-8, 1e-4, 1.0, 1e4, 1e10, 1e18])
@relus
def test_a_relu_explains_its_difference_at_any_scale(relus: list[str], scale: float) -> None:
    x, r = PAIRS * np.float32(scale)
    want = np.maximum(x.astype(np.float64), 0) - np.maximum(r.astype(np.float64), 0)
    assert np.abs(alone(relus, x, r) - want).max() <= 4e-7 * 30 * scale


@relus
def test_a_relu_is_exact_where_signs_agree(relus: list[str]) -> None:
    x, r = PAIRS
    same = (x > 1e-5) & (r > 1e-5)
    np.testing.assert_array_equal(alone(relus, x, r)[same], (x - r)[same])


@pytest.mark.parametrize("op_type", ["ThresholdedRelu", "Shrink", "LeakyRelu", "Elu", "Selu", "HardSigmoid"])
@pytest.mark.usefixtures("float64_engine")
def test_a_sum_that_stays_where_it_was_is_explained_by_the_slope_there(op_type: str) -> None:
    """a + b is the reference's, a and b are not: the multiplier at the tie is what they are explained by."""
    z, h = np.array([[-1.5, -0.75, -0.25, 0.25, 0.75, 1.5]]), 1e-6
    model = parsed(
        f"g (double[N, 6] a, double[N, 6] b) => (double[N, 6] y) {{ z = Add (a, b) y = {op_type} (z) }}"
    )
    high, low = (run64(model, {"a": z, "b": np.full_like(z, step)})["y"] for step in (h, -h))
    compiled = compile_model(model, DeepShap({"a": z, "b": 0 * z}), targets="all")
    answer = run64(compiled.model, {"a": z + 0.5, "b": 0 * z - 0.5})
    want = np.diag((high - low)[0] / (2 * h)) / 2
    np.testing.assert_allclose(answer["a_attributions"][0], want, atol=FINITE_DIFFERENCE)
    np.testing.assert_allclose(answer["b_attributions"][0], -want, atol=FINITE_DIFFERENCE)


@relus
def test_no_value_of_a_relu_is_subnormal(relus: list[str]) -> None:
    """What stands for nothing is 0 or a normal number: a subnormal one takes ten times as long to compute."""
    x = np.array([0.1, 0.3, 1.0, 5.0], np.float32)
    compiled = compile_model(chain(relus, 4), DeepShap(np.stack([x, x[::-1], -x])), targets=[0, 1, 2, 3])
    evaluator = ReferenceEvaluator(inline_local_functions(compiled.model))
    with np.errstate(over="ignore"):  # where both are negative
        values = evaluator.run(None, {"x": np.stack([x, -x])}, intermediate=True)
    floats = [value for value in values.values() if getattr(value, "dtype", None) == np.float32]
    assert len(floats) > 10
    smallest = np.finfo(np.float32).tiny
    assert not any(((value != 0) & (np.abs(value) < smallest)).any() for value in floats)


def test_a_multiplier_that_references_share_takes_a_variant_of_its_own() -> None:
    compiled = compile_model(chain(["Relu", "Relu"], 4), DeepShap(rows(3, 4)), targets=[0])
    variants = compiled.manifest.variants
    assert variants is not None
    assert variants.taken == {
        "rescale rule of a ReLU: quotient of baked and x": 1,
        "rescale rule of a ReLU: quotient of sums": 1,
    }


class Unfused(DeepShap):
    """DeepSHAP, operator by operator."""

    def plan(self, _op: Any, calls: Any, _outputs: Any = ()) -> Any:
        return calls, self.pull


def random_weights(**shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    return {name: draw.standard_normal(shape) / 2 for name, shape in shapes.items()}


NORM = {"s": np.array([0.5, -1.5, 0.0]), "o": np.array([0.1, 0.2, 0.3]), "m": np.zeros(3), "v": np.ones(3)}
GROUPS = {
    "swish": ("s = Sigmoid(x) y = Mul(x, s)", {}),
    "gelu": (
        "a = Mul(x, half) b = Mul(x, root) e = Erf(b) f = Add(e, one) y = Mul(a, f)",
        {"half": np.asarray(0.5), "root": np.asarray(0.5**0.5), "one": np.asarray(1.0)},
    ),
    "mish, read twice": ("p = Softplus(x) t = Tanh(p) a = Mul(x, t) y = Add(a, t)", {}),
    "no group: read outside": ("s = Sigmoid(x) a = Mul(x, s) y = Concat <axis = 1> (a, s)", {}),
    "relu and pool": ("a = Relu(x) y = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (a)", {}),
    "relu and overlapping pool": ("a = Relu(x) y = MaxPool <kernel_shape = [3, 3]> (a)", {}),
    "relu read twice": (
        "a = Relu(x) b = MaxPool <kernel_shape = [3, 2]> (a) c = ReduceSum(a, ax) y = Add(b, c)",
        {"ax": np.array([1, 2, 3])},
    ),
    "normalised before a layer": (
        "a = BatchNormalization(x, s, o, m, v) b = Relu(a) y = Conv(b, w)",
        {**NORM, **random_weights(w=(4, 3, 2, 3))},
    ),
    "scaled before two layers": (
        "a = Mul(x, f) b = Add(a, g) c = Relu(b) d = Conv(c, w) e = Conv(c, u) y = Add(d, e)",
        {
            "f": NORM["s"].reshape(3, 1, 1),
            "g": NORM["o"].reshape(3, 1, 1),
            **random_weights(w=(4, 3, 1, 1), u=(4, 3, 1, 1)),
        },
    ),
    "layer and average": (
        "a = Conv(x, w) y = AveragePool <kernel_shape = [2, 2], strides = [2, 2]> (a)",
        random_weights(w=(4, 3, 1, 1)),
    ),
    "concatenations that begin alike": (
        "a = Relu(x) b = Concat <axis = 1> (x, a) c = Sigmoid(b) d = Concat <axis = 1> (x, a, c) "
        "e = Conv(d, w) f = Conv(b, u) y = Add(e, f)",
        random_weights(w=(4, 12, 1, 1), u=(4, 6, 1, 1)),
    ),
}


@pytest.mark.parametrize("name", GROUPS)
@pytest.mark.usefixtures("float64_engine")
def test_fusion_changes_nothing(name: str) -> None:
    body, weights = GROUPS[name]
    floats = {k: v.astype(np.float64) if v.dtype.kind == "f" else v for k, v in weights.items()}
    model = parsed(f"g (double[N, 3, 4, 6] x) => (double[N, C, H, W] y) {{ {body} }}", floats)
    draw = np.random.default_rng(3)
    references, x = draw.standard_normal((4, 3, 4, 6)), draw.standard_normal((2, 3, 4, 6))
    x[:, :, ::2] = references[:1, :, ::2]  # ties
    answers = []
    for method in (DeepShap, Unfused):
        compiled = compile_model(model, method(references), targets=[0, 3])
        answers.append(run64(compiled.model, {"x": x}))
    for key, want in answers[1].items():
        assert np.abs(answers[0][key] - want).max() <= FUSED_64 * np.abs(want).max(initial=1.0), key


def planned(name: str) -> list[str]:
    """The operators that are walked back."""
    body, weights = GROUPS[name]
    singles = {k: v.astype(np.float32) if v.dtype.kind == "f" else v for k, v in weights.items()}
    model = parsed(f"g (float[N, 3, 4, 6] x) => (float[N, C, H, W] y) {{ {body} }}", singles)
    seen: list[list[str]] = []

    class Listing(DeepShap):
        def plan(self, op: Any, calls: Any, outputs: Any = ()) -> Any:
            fused, pull = super().plan(op, calls, outputs)
            seen.append([call.rule.op_type for call in fused])
            return fused, pull

    compile_model(model, Listing(rows(3, 3, 4, 6)), targets=[0])
    (operators,) = seen
    return operators


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("swish", 1),
        ("gelu", 1),
        ("mish, read twice", 1),
        ("no group: read outside", 3),
        ("relu and pool", 1),
        ("relu read twice", 4),
    ],
)
def test_what_is_fused(name: str, count: int) -> None:
    assert len(planned(name)) == count


@pytest.mark.parametrize("name", ["normalised before a layer", "scaled before two layers"])
def test_a_factor_of_channels_goes_into_the_layers_behind(name: str) -> None:
    operators = planned(name)
    assert operators.count("absorbed") == 1
    assert not {"BatchNormalization", "Mul"} & set(operators)


@pytest.mark.parametrize(
    "choice",
    ["t = Less (a, limit) s = Where (t, b, masked)", "t = Greater (a, limit) s = Where (t, masked, b)"],
)
def test_a_choice_that_stays_is_explained_beside_an_infinite_branch(choice: str) -> None:
    """A mask of attention chooses between a score and −∞, and takes the score whatever x."""
    model = parsed(
        f"""g (double[N, 2] x) => (double[N, 1] y) <int64[2] parts = {{1, 1}}> {{
            a, b = Split <axis = 1> (x, parts) {choice} e = Exp (s) y = Add (e, a)
        }}""",
        {"limit": np.array([1e3]), "masked": np.array([-np.inf])},
    )
    references, x = np.array([[0.5, 0.1], [0.2, -0.3]]), np.array([[1.0, 0.7]])
    got = run64(compile_model(model, DeepShap(references), targets=[0]).model, {"x": x})
    gain = np.exp(0.7) - np.exp(references[:, 1]).mean()
    np.testing.assert_allclose(got["x_attributions"][0, 0], [0.65, gain], atol=FUSED_64)
