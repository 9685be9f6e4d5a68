"""What the fields of a page go over: the profile's ranges, else round numbers beyond the references."""

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rationale import DeepShap, compile_model
from rationale.export.fields import Range, fields, range_of, rounded_field
from rationale.export.page import build_page, bundle_modules
from rationale.export.web import WebRuntime
from rationale.schema.form import FormField
from rationale.schema.manifest import Category
from rationale.schema.profile import FeatureRule
from tests.compiler.export import models
from tests.compiler.models import mlp, parsed, rows
from tests.needs import need


@pytest.mark.parametrize(
    ("least", "most", "whole", "expected"),
    [
        (12000, 55130, True, Range(10000, 60000, 500)),
        (0, 4, True, Range(0, 4, 1)),
        (0.087, 0.6321, False, Range(0.05, 0.65, 0.005)),
        (-1.2, 3.4, False, Range(-1.5, 3.5, 0.05)),
        (3.0, 3.0, False, Range(0, 6, 0.05)),
        (0, 0, True, Range(0, 1, 1)),
        (-3.0, -3.0, False, Range(-6, 1, 0.05)),
        (1e-9, 3e-9, False, Range(1e-9, 3e-9, 1e-11)),
        (
            0.3,
            2.2,
            False,
            Range(0.3, 2.2, 0.01),
        ),  # 0.3/0.1 in binary is less than 3, and 2.2/0.1 more than 22
    ],
)
def test_round_numbers_beyond_the_references(least: float, most: float, whole: bool, expected: Range) -> None:
    assert range_of(least, most, FeatureRule(), whole=whole) == expected


def test_the_profile_comes_first() -> None:
    actual = range_of(20, 70, FeatureRule(least=18, most=99), whole=True)
    assert (actual.least, actual.most) == (18, 99)


def test_of_each_kind() -> None:
    compiled = models.double()
    assert compiled.manifest.references is not None
    spreads = compiled.manifest.references.spreads
    job, income, _, age, bankruptcies = fields(compiled.manifest, compiled.sample, spreads)
    assert (job["title"], job["choices"][2], job["value_labels"]["2"]) == ("Job", 2.0, "full time")
    assert (income["kind"], income["least"] % 1000, income["missing"]) == ("number", 0, False)
    assert (age["unit"], age["least"], age["most"]) == ("years", 18, 99)
    assert not {"input", "begin"} & set(bankruptcies)
    assert (bankruptcies["least"], bankruptcies["most"], bankruptcies["missing"]) == (0, 1, True)


def test_a_flag_is_chosen() -> None:
    graph = "g (float[N, 2] x) => (float[N, 1] p) { z = MatMul (x, w) p = Sigmoid (z) }"
    profile = {
        "output": "p",
        "threshold": 0.5,
        "adverse": "above",
        "references": {"policy": "all_applicants"},
        "features": {"a": {"type": "flag"}},
        "reasons": {},
    }
    model = parsed(graph, {"w": rows(2, 1)})
    compiled = compile_model(model, DeepShap(rows(4, 2)), decision=profile, feature_names=["a", "b"])
    flag, number = fields(compiled.manifest, compiled.sample, {})
    assert (flag["choices"], flag["value_labels"]) == ([0, 1], {"0": "no", "1": "yes"})
    assert "choices" not in number


def test_no_row_of_the_references_is_told_beside_the_graph() -> None:
    references = rows(7, 5, seed=3) * np.float32(1.2345)
    compiled = compile_model(mlp(), DeepShap(references), feature_names=["a", "b", "c", "d", "e"])
    assert compiled.manifest.references is not None
    reference = compiled.manifest.references.spreads
    for i, field in enumerate(fields(compiled.manifest, compiled.sample, reference)):
        assert field["least"] < references[:, i].min()
        assert field["most"] > references[:, i].max()
        assert not set(references[:, i].tolist()) & {field["least"], field["most"], field["begin"]}
        assert not {"quantiles", "categories", "missing_share"} & set(field)


def test_no_text_ends_its_element() -> None:
    facts = {"name": "</title><script>", "output": "<!--</script>{{SCRIPT}}", "decided": None}
    runtime = WebRuntime("1.30.0", "const ort = {};", b"wasm")
    decided = {"name": "m", "output": "p_margin", "decided": {"profile": {"output": "p[1]"}}}
    assert b"<title>m: p[1]</title>" in build_page(decided, b"graph", runtime)
    page = build_page(facts, b"graph", runtime).decode()
    assert page.count("<script") == 4
    assert page.count("</script>") == 4
    assert page.count("const ort = {};") == 1
    assert "<!--" not in page


def test_the_modules_are_one_script(tmp_path: Path) -> None:
    """No two of them declare the same name, and none imports or exports."""
    script = tmp_path / "script.js"
    script.write_text("\n".join(bundle_modules("main.js").values()))
    result = subprocess.run([need("Node.js"), "--check", script], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    "own",
    [
        {"kind": "number"},
        {"kind": "number", "choices": [1, 2]},
        {"kind": "number", "whole": True, "begin": 1.0},
        {"kind": "text"},
        {"kind": "text", "choices": ["own", "rent"]},
        {"kind": "flag", "choices": [False, True]},
    ],
)
@pytest.mark.parametrize("quantiles", [None, (0.0, 1.0, 5.0)])
def test_nothing_of_a_kind_tells_how_the_references_are_spread(
    own: dict[str, Any], quantiles: tuple[float, ...] | None
) -> None:
    known = (Category(value="1", share=0.25), Category(value="2", share=0.75))
    spread = {"quantiles": quantiles, "missing_share": 0.5, "categories": known}
    field = FormField.model_validate({"name": "x", "input": "x", "missing": True, **own, **spread})
    told = rounded_field(field, FeatureRule(), 1.0).model_dump(exclude_none=True)
    assert not {*spread} & {*told}
    assert told["kind"] == own["kind"]
