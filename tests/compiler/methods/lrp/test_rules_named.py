"""`compiled.rules()`: which rule each operator got, under the names that `--rule` takes."""

import re
from pathlib import Path

import numpy as np
import pytest

from rationale import AttnLrp, DeepShap, Lrp, compile_model, load
from rationale.methods.propagation.lrp import rules as lrp
from rationale.methods.propagation.lrp.composites import COMPOSITES
from rationale.methods.propagation.lrp.texts import parse_rule
from rationale.terminal import manifest_lines
from tests.compiler.methods.lrp.models import network
from tests.compiler.models import cnn, parsed
from tests.compiler.pictures.pages import Page
from tests.references.interpreter import run64
from tests.tolerances import RELEVANCE_64

UNNAMED = ("halves", "winner")  # that no `--rule` chooses, as no other rule is possible there


def test_each_operator_has_the_rule_of_its_composite() -> None:
    model, _ = network("resnet")
    compiled = compile_model(model, Lrp(rules=[("name:^c4$", lrp.Gamma(0.4))]))
    assert [str(layer_rule) for layer_rule in compiled.rules()] == [
        "Conv c1: zplus",
        "Relu r1: pass",
        "Conv c2: zplus",
        "Relu r2: pass",
        "Conv c3: zplus",
        "Add sum1: epsilon",
        "Relu r3: pass",
        "Conv c4: gamma:0.4",
        "Conv short: zplus",
        "Add sum2: epsilon",
        "Relu r4: pass",
        "GlobalAveragePool p: epsilon",
        "Gemm l1: epsilon",
    ]
    assert compiled.rules()[0].tensor == "b"  # of the BatchNormalization that is part of the layer


@pytest.mark.usefixtures("float64_engine")
@pytest.mark.parametrize(
    "composite", [name for name, layer_rule in COMPOSITES.items() if not layer_rule.is_gradient]
)
@pytest.mark.parametrize("name", ["mlp", "vgg", "resnet"])
def test_the_rules_that_are_named_are_those_that_act(name: str, composite: str) -> None:
    """They give the same relevance where they refine another composite, one operator at a time."""
    model, shape = network(name, biases=0.1)
    bounds = {"low": -4, "high": 4}
    compiled = compile_model(model, Lrp(composite, **bounds), targets="all")
    choices = [
        (f"name:^{re.escape(layer_rule.name)}$", parse_rule(layer_rule.rule))
        for layer_rule in compiled.rules()
        if layer_rule.rule not in UNNAMED
    ]
    other = "ExcitationBackprop" if composite == "EpsilonPlus" else "EpsilonPlus"
    recompiled = compile_model(model, Lrp(other, choices, **bounds), targets="all")
    assert recompiled.rules() == compiled.rules()
    x = np.random.default_rng(6).standard_normal((3, *shape))
    want, got = (run64(c.model, {"x": x})["x_attributions"] for c in (compiled, recompiled))
    np.testing.assert_allclose(got, want, rtol=0, atol=RELEVANCE_64 * np.abs(want).max())


def test_attention_has_the_rules_of_attnlrp() -> None:
    model = parsed(
        """g (float[N, 3, 4] x) => (float[N, 3, 4] y) {
            [query] q = MatMul (x, w)  [turn] t = Transpose <perm = [0, 2, 1]> (q)
            [scores] s = MatMul (x, t)  [softmax] p = Softmax (s)  [heads] h = MatMul (p, x)
            [gate] g = Sigmoid (h)  [gated] u = Mul (g, x)  [most] m = Max (u, q)  [skip] y = Add (m, x)
        }""",
        {"w": np.eye(4, dtype=np.float32)},
    )
    assert [str(layer_rule) for layer_rule in compile_model(model, AttnLrp(0.1)).rules()] == [
        "MatMul query: epsilon:0.1",
        "MatMul scores: epsilon:0.05",
        "Softmax softmax: own",
        "MatMul heads: epsilon:0.05",
        "Sigmoid gate: pass",
        "Mul gated: halves",
        "Max most: own",
        "Add skip: zero",
    ]


def test_gradients_with_other_relus_name_them() -> None:
    layer_rules = compile_model(network("mlp")[0], Lrp("GuidedBackprop")).rules()
    assert {(layer_rule.operator, layer_rule.rule) for layer_rule in layer_rules} == {
        ("Gemm", "taylor"),
        ("Relu", "guidedrelu"),
        ("LeakyRelu", "taylor"),
    }


def test_a_written_entry_and_the_reports_name_them_too(tmp_path: Path) -> None:
    low = np.full((2, 6, 8), -4).tolist()
    compiled = compile_model(cnn(), Lrp(rules=[("first", lrp.ZBox(low, 4))]))
    compiled.write(tmp_path, "net")
    assert load(tmp_path, "net").rules() == compiled.rules()
    line = dict(manifest_lines(compiled.manifest))["rules"]
    assert line.endswith(": 1 Conv; pass: 1 Relu; winner: 1 MaxPool; epsilon: 1 Gemm")
    assert len(line) < 150  # bounds of an image are not spelled out
    page = Page(compiled._repr_html_())
    assert any("4 operators" in seen.text for seen in page.of("summary"))
    assert {"MaxPool pool", "winner"} <= {seen.text for seen in (*page.of("th"), *page.of("td"))}


def test_methods_without_rules_name_none() -> None:
    compiled = compile_model(network("mlp")[0], DeepShap(np.zeros((1, 7))))
    assert compiled.rules() == ()
    assert "rules" not in dict(manifest_lines(compiled.manifest))
