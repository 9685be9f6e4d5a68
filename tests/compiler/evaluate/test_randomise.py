"""The parts of the randomised-weights check: rank correlation, which weights, methods from manifests."""

import numpy as np
import onnx
import pytest
from scipy import stats

from rationale import Gradient, compile_model
from rationale.errors import InvalidOptionError
from rationale.evaluate.randomise import find_layers, mean_spearman, permute_weights
from rationale.methods.methods import method_of
from rationale.methods.propagation.lrp.lrp import Lrp
from rationale.methods.propagation.lrp.rules import Epsilon, Gamma
from tests.compiler.models import cnn, mlp, parsed, rows


def test_spearman_is_scipys() -> None:
    random = np.random.default_rng(0)
    a, b = random.integers(0, 5, (6, 9)), random.integers(0, 5, (6, 9))
    expected = np.mean([stats.spearmanr(i, j).statistic for i, j in zip(a, b, strict=True)])
    assert mean_spearman(a, b) == pytest.approx(expected, abs=1e-12)
    assert mean_spearman(a, a) == pytest.approx(1)
    assert mean_spearman(a, -a) == pytest.approx(-1)
    a[0] = 3
    correlation = np.mean([stats.spearmanr(i, j).statistic for i, j in zip(a[1:], b[1:], strict=True)])
    assert mean_spearman(a, b) == pytest.approx(correlation, abs=1e-12), "a constant row has no ranks"
    assert mean_spearman(a[:1], b[:1]) is None


def test_which_weights_are_redrawn() -> None:
    text = """g (float[N, 5] x) => (float[N, 3] y) {
        s = Sub (x, mean)
        t = Transpose (w1)
        [first] a = MatMul (s, t)
        c = Constant <value = float[4, 3] {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}> ()
        [second] y = Gemm (a, c, b) }"""
    model = parsed(text, {"mean": rows(5), "w1": rows(4, 5), "b": rows(3)})
    layers = find_layers(model)
    assert [(layer.name, layer.weights) for layer in layers] == [("first", ("w1",)), ("second", ("c", "b"))]
    before = model.SerializeToString()
    partly, wholly = permute_weights(model, layers[1:], [0]), permute_weights(model, layers, [0])
    assert model.SerializeToString() == before
    drawn = {t.name: onnx.numpy_helper.to_array(t) for t in wholly.graph.initializer}
    np.testing.assert_array_equal(drawn["mean"], rows(5))
    assert not np.array_equal(drawn["w1"], rows(4, 5))
    np.testing.assert_array_equal(np.sort(drawn["w1"], axis=None), np.sort(rows(4, 5), axis=None))
    second = [onnx.numpy_helper.to_array(m.graph.node[3].attribute[0].t) for m in (partly, wholly)]
    np.testing.assert_array_equal(second[0], second[1], "a longer cascade keeps what a shorter one drew")
    assert sorted(second[0].reshape(-1)) == list(range(1, 13))
    assert not np.array_equal(second[0].reshape(-1), np.arange(1, 13))
    onnx.checker.check_model(wholly)


def test_a_method_is_made_again_from_its_manifest() -> None:
    request = compile_model(mlp(), Gradient(times_input=True)).manifest.request
    assert method_of(request) == Gradient(times_input=True)
    for change, words in (
        ({"method": "magic"}, "'magic' cannot be made"),
        ({"options": {"speed": 9}}, "input-x-gradient takes no --speed"),
    ):
        with pytest.raises(InvalidOptionError, match=words):
            method_of(request.model_copy(update=change))


def test_rules_of_lrp_are_read_back() -> None:
    method = Lrp("EpsilonAlpha2Beta1", rules=(("Conv", Gamma(0.5)), ("name:head.*", Epsilon(0.01))))
    rebuilt = method_of(compile_model(cnn(), method, targets=[1]).manifest.request)
    assert isinstance(rebuilt, Lrp)
    assert (rebuilt.composite, rebuilt.rules) == (method.composite, method.rules)
