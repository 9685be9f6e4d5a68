"""Composites in TOML files: what they mean, and what is told of one that cannot be read."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

from rationale import Epsilon, Gamma, InvalidOptionError, Lrp, Manifest, Zero, compile_model
from rationale.artifact.entry import open_entry
from rationale.cli.compile import app
from rationale.methods.methods import make_method
from rationale.methods.propagation.lrp import rules as lrp
from tests.compiler.models import mlp
from tests.compiler.packages import Packages, packages

__all__ = ["packages"]  # a fixture, found by its name

OWN = """
base = "EpsilonAlpha2Beta1"
low = -3
high = [1.0, 2.0, 3.0, 4.0, 5.0]

[rules]
Gemm = "gamma(0.5)"
"name:layer.*" = "epsilon:0.1"
"1-2" = "zplus"
"last 1" = "gamma(gamma=0.25, epsilon=1e-3)"
"Gemm:first" = "zbox"
"""
CHOICES = (
    ("Gemm", Gamma(0.5)),
    ("name:layer.*", Epsilon(0.1)),
    ("1-2", lrp.ZPlus()),
    ("last 1", Gamma(0.25, 1e-3)),
)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    onnx.save(mlp(), "m.onnx")
    Path("own.toml").write_text(OWN)
    return tmp_path


@pytest.mark.usefixtures("place")
def test_a_file_is_the_composite_that_it_says() -> None:
    read = Lrp.from_toml("own.toml")
    assert read.composite == "EpsilonAlpha2Beta1"
    assert read.rules[:-1] == CHOICES
    assert read.options["rules"][-1] == ["Gemm:first", "zbox"]
    assert (read.low, read.high) == (-3, [1.0, 2.0, 3.0, 4.0, 5.0])
    Path("empty.toml").write_text("")
    assert Lrp.from_toml(Path("empty.toml")).options == Lrp().options


@pytest.mark.usefixtures("place")
def test_the_order_of_the_lines_decides() -> None:
    first, second = 'Gemm = "gamma(0.5)"\n', '"1-9" = "zero"\n'
    x = np.random.default_rng(2).standard_normal((3, 5)).astype(np.float32)
    for lines, wins in ((first + second, Zero()), (second + first, Gamma(0.5))):
        Path("two.toml").write_text(f"[rules]\n{lines}")
        got = compile_model("m.onnx", Lrp.from_toml("two.toml"), targets=[1]).explain(x)
        want = compile_model("m.onnx", Lrp(rules=[("Gemm", wins)]), targets=[1]).explain(x)
        np.testing.assert_array_equal(got["x_attributions"], want["x_attributions"])


@pytest.mark.usefixtures("place")
def test_on_the_command_line() -> None:
    """Flags come after the file; the manifest says all, and the file may go."""
    command = "compile m.onnx --name m --method lrp --targets 0,2 --composite own.toml --high 4".split()
    done = CliRunner().invoke(app, [*command, "--rule", "last=epsilon(0.5)"])
    assert done.exit_code == 0, done.output
    Path("own.toml").unlink()
    manifest = Manifest.read(Path("model_repository/m_explain/explanation.json"))
    assert manifest.method.options == {
        "composite": "EpsilonAlpha2Beta1",
        "rules": [
            ["Gemm", "gamma:0.5"],
            ["name:layer.*", "epsilon:0.1"],
            ["1-2", "zplus"],
            ["last 1", "gamma:0.25:0.001"],
            ["Gemm:first", "zbox"],
            ["last", "epsilon:0.5"],
        ],
        "low": -3,
        "high": 4.0,
    }
    rules = [*CHOICES, ("Gemm:first", lrp.ZBox()), ("last", Epsilon(0.5))]
    same = compile_model("m.onnx", Lrp("EpsilonAlpha2Beta1", rules, low=-3, high=4.0), targets=[0, 2])
    assert same.manifest.digests == manifest.digests
    x = np.random.default_rng(4).standard_normal((3, 5)).astype(np.float32)
    got = open_entry(Path("model_repository"), "m").explain(x)["x_attributions"]
    np.testing.assert_array_equal(got, same.explain(x)["x_attributions"])


@pytest.mark.usefixtures("place")
def test_only_a_path_is_read() -> None:
    with pytest.raises(InvalidOptionError, match=r"composite 'own\.toml' is not known; there"):
        make_method("lrp", None, {"composite": "own.toml"})
    made = make_method("lrp", None, {"composite": Path("own.toml"), "rule": ["last=zero"]})
    assert made.options["rules"][-1] == ["last", "zero"]


FAULTY: dict[str, tuple[str, str]] = {
    "no TOML": ("base = ", "no TOML (Invalid value (at end of document))"),
    "a selector without quotes": (
        '[rules]\nname:head = "zero"',
        'and so does a rule: "name:h',
    ),
    "a rule without quotes": ("[rules]\nConv = gamma(0.25)", "no TOML (Invalid value (at line 2, column 8))"),
    "a selector twice": ('[rules]\nConv = "zero"\nConv = "zplus"', "no TOML (Cannot overwrite a value"),
    "no text": ("\udcff", "no TOML ('utf-8' codec can't decode byte 0xff"),
    "too deep": (f"low = {'[' * 20_000}", "no TOML (maximum recursion depth"),
    "an unknown key": (
        'composite = "EpsilonPlus"',
        "key 'composite' is not known; there are base",
    ),
    "rules beside the table": (
        'Conv = "zero"',
        "key 'Conv' is not known; there are base",
    ),
    "an unknown base": (
        'base = "Epsilon"',
        "base = 'Epsilon' is not known; there are EpsilonPlus, ",
    ),
    "a base that is no text": ("base = 1", "base = 1 is not known; there are EpsilonPlus"),
    "rules of a gradient": (
        'base = "Deconvnet"\n[rules]\nConv = "zero"',
        "composite Deconvnet takes no rules",
    ),
    "rules that are no table": ('rules = ["Conv=zero"]', "rules is a table, [rules]"),
    "a rule that is no text": ("[rules]\nConv = 0.25", 'rules."Conv" must be a rule as a text'),
    "a dot without quotes": ('[rules]\nhead.a = "zero"', "A selector with a dot stands in quotes."),
    "an unknown selector": (
        '[rules]\nhead = "zero"',
        "rules.\"head\": selector 'head' is not known",
    ),
    "an unknown rule": (
        '[rules]\nfirst = "box"',
        "rules.\"first\": rule 'box' is not known; there are ",
    ),
    "an unknown parameter": (
        '[rules]\nfirst = "zbox(lo=1)"',
        "lo is no parameter of it; the form is zbox:LOW:HIGH:EPSILON or zbox(low=…, high=…, epsilon=…).",
    ),
    "a rule that a package spoils": (
        '[rules]\nlast = "mine"',
        'rules."last": package mine 1.2, entry',
    ),
    "bounds that are none": ("low = 1\nhigh = 0", "low and high must be given together"),
    "one bound": ("low = 1", "Lrp: low and high must be given together"),
    "bounds in words": ('low = "a"\nhigh = "b"', "low and high must be given together"),
}


@pytest.mark.parametrize("name", FAULTY)
def test_faults_name_the_file_the_key_and_what_is_allowed(place: Path, name: str, packages: Packages) -> None:
    text, says = FAULTY[name]
    packages.install("mine", "1 / 0", {"mine": "mine:Mine"})
    Path("own.toml").write_text(text, "utf-8", errors="surrogateescape")
    done = CliRunner().invoke(
        app, "compile m.onnx --name m --method lrp --composite own.toml".split(), catch_exceptions=False
    )
    assert done.exit_code == 2, done.output
    assert done.stderr.startswith("error: own.toml: ")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (place / "model_repository").exists()


@pytest.mark.usefixtures("place")
def test_a_file_that_is_not_there() -> None:
    with pytest.raises(InvalidOptionError, match=r"other\.toml: cannot be read: No such file"):
        Lrp.from_toml("other.toml")
