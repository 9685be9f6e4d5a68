"""LRP rules that installed packages bring, by their names on the command line."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner, Result

from rationale import ExtensionError, InvalidOptionError, Lrp, Manifest, compile_model
from rationale.artifact.entry import open_entry
from rationale.cli.compile import app
from rationale.extensions import LRP_RULES
from rationale.methods.methods import method_of
from rationale.methods.propagation.lrp.rules import RULES, Gamma, RelevanceRule
from rationale.methods.propagation.lrp.texts import parse_rule
from rationale.schema.manifest import Extension
from tests.compiler.methods.lrp.models import spellings
from tests.compiler.models import mlp
from tests.compiler.packages import ABSOLUTE, Packages, packages
from tests.references import lrp as reference
from tests.references.interpreter import run64
from tests.tolerances import RELEVANCE_64

__all__ = ["packages"]  # a fixture, found by its name

RECORDED = Extension(
    group=LRP_RULES, name="absolute", value="example_rules:Absolute", package="example-rules", version="1.2"
)


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["compile", "m.onnx", "--name", "m", "--method", "lrp", *arguments])


def written() -> Manifest:
    return Manifest.read(Path("model_repository/m_explain/explanation.json"))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    onnx.save(mlp(), "m.onnx")
    return tmp_path


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("rule", ["Gemm=absolute:0.2", "first=absolute(epsilon=0.2)"])
def test_a_rule_of_a_package_is_its_matrix_form(packages: Packages, rule: str) -> None:
    """From the command line to the answer of the written entry, in float64."""
    packages.install_absolute()
    model, _ = spellings()["gemm"]
    onnx.save(model, "m.onnx")
    result = call("--rule", rule, "--targets", "0,4")
    assert result.exit_code == 0, result.output
    assert "absolute of example-rules 1.2" in result.stdout
    x = np.random.default_rng(3).standard_normal((3, 4))
    got = open_entry(Path("model_repository"), "m").explain(x)["x_attributions"]
    W, b = reference.matrix_of(lambda v: run64(model, {"x": v})["y"], (4,))
    for n, row in enumerate(x):
        y = W @ row + b
        for t, target in enumerate((0, 4)):
            R = np.where(np.arange(len(y)) == target, y, 0.0)
            want = reference.shared(np.abs(W * row), np.abs(b), R, 0.2)
            np.testing.assert_allclose(got[n, t], want, rtol=0, atol=RELEVANCE_64 * np.abs(want).max())


@pytest.mark.usefixtures("place")
def test_the_manifest_says_by_what_it_was_made(packages: Packages) -> None:
    packages.install_absolute()
    assert call("--rule", "Gemm=absolute:0.2", "--rule", "last=absolute").exit_code == 0
    manifest = written()
    assert manifest.extensions == (RECORDED,)
    assert manifest.method.options["rules"] == [["Gemm", "absolute:0.2"], ["last", "absolute"]]
    recreated = method_of(manifest.request)
    assert isinstance(recreated, Lrp)
    assert str(recreated.rules[0][1]) == "absolute:0.2"
    assert compile_model("m.onnx", recreated).manifest.digests == manifest.digests
    packages.install_absolute("1.3")
    newer = compile_model("m.onnx", method_of(manifest.request)).manifest
    assert newer.extensions == (RECORDED.model_copy(update={"version": "1.3"}),)
    assert newer.method == manifest.method
    assert newer.digests.options != manifest.digests.options
    assert compile_model("m.onnx", Lrp(rules=[("Gemm", Gamma())])).manifest.extensions == ()


def test_a_rule_of_a_script_has_no_package(packages: Packages) -> None:
    (packages.folder / "script.py").write_text(ABSOLUTE)
    script = __import__("script")
    (extension,) = compile_model(mlp(), Lrp(rules=[("Gemm", script.Absolute())])).manifest.extensions
    assert (extension.value, extension.package, extension.version) == ("script:Absolute", None, None)
    assert str(extension) == "absolute of script:Absolute"


def test_a_rule_of_a_script_needs_a_name_and_groups() -> None:
    @dataclass(frozen=True)
    class Nameless(RelevanceRule):
        pass

    @dataclass(frozen=True)
    class Empty(RelevanceRule):
        name: ClassVar[str] = "empty"

    RULES.pop("empty")
    for rule, says in ((Nameless(), "ClassVar"), (Empty(), "`groups`")):
        with pytest.raises(InvalidOptionError, match=says):
            Lrp(rules=[("Gemm", rule)])


def test_a_script_may_go_on_with_a_rule_that_is_installed(packages: Packages) -> None:
    """What is recorded is the class that was used; its text is read as the package's."""
    packages.install_absolute()
    (packages.folder / "script.py").write_text(ABSOLUTE)
    script_rule = __import__("script").Absolute()
    (extension,) = Lrp(rules=[("Gemm", script_rule)]).extensions
    assert (extension.value, extension.package) == ("script:Absolute", None)
    (extension,) = Lrp(
        rules=[("Gemm", parse_rule("absolute")), ("last", parse_rule("absolute:1"))]
    ).extensions
    assert extension == RECORDED


def test_nothing_is_imported_before_its_name_is_asked_for(packages: Packages) -> None:
    packages.install("careless", "raise SystemExit('no licence')", {"careless": "careless:Rule"})
    packages.install_absolute()
    assert parse_rule("gamma:0.5") == Gamma(0.5)
    with pytest.raises(InvalidOptionError, match=r"'absolut'.* zero, .*, absolute"):
        parse_rule("absolut")
    assert {"careless", "example_rules"}.isdisjoint(sys.modules)
    assert str(parse_rule("absolute")) == "absolute"
    with pytest.raises(ExtensionError, match=r"careless 1\.2, .*SystemExit"):
        parse_rule("careless")


def rule(body: str, decorator: str = "@dataclass(frozen=True)") -> str:
    head = ABSOLUTE.split("@dataclass")[0]
    return f"{head}\n\n{decorator}\nclass Mine(RelevanceRule):\n    {body}\n"


GROUPS = "def groups(self): return (Group((Term(absolute, absolute),)),)"
NAMED = 'name: ClassVar[str] = "mine"'

FAULTY: dict[str, tuple[str, str, str]] = {
    "it does not import": ("import nothing_like_it", "mine:Mine", "ModuleNotFoundError: No module named"),
    "a module that is not there": ("", "elsewhere:Mine", "No module named 'elsewhere'"),
    "an attribute that is not there": ("", "mine:Mine", "AttributeError"),
    "a module": ("", "mine", "derived from rationale.RelevanceRule"),
    "a function": ("def Mine(): pass", "mine:Mine", "derived from rationale.RelevanceRule"),
    "another class": ("class Mine: pass", "mine:Mine", "derived from rationale.RelevanceRule"),
    "no dataclass": (rule(f"{NAMED}\n    {GROUPS}", ""), "mine:Mine", "decorate it with @dataclass"),
    "no name": (rule(GROUPS), "mine:Mine", 'write name: ClassVar[str] = "mine"'),
    "another name": (
        rule(f'name: ClassVar[str] = "yours"\n    {GROUPS}'),
        "mine:Mine",
        'write name: ClassVar[str] = "mine"',
    ),
    "a name that is a field": (
        rule(f'name: str = "mine"\n    {GROUPS}'),
        "mine:Mine",
        'write name: ClassVar[str] = "mine"',
    ),
    "no groups": (rule(NAMED), "mine:Mine", "`groups`"),
    "the name of one of ours in its class": (
        rule(f'name: ClassVar[str] = "gamma"\n    {GROUPS}'),
        "mine:Mine",
        "one of Rationale's own rules has the name 'gamma'",
    ),
}


@pytest.mark.parametrize("name", FAULTY)
def test_a_package_that_cannot_be_used(packages: Packages, place: Path, name: str) -> None:
    """One line with the package and its entry point; nothing is written, and our own rules go on."""
    code, value, says = FAULTY[name]
    packages.install("mine", code, {"mine": value}, version="0.3")
    result = call("--rule", "Gemm=mine:0.1")
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith(f"error: package mine 0.3, entry point mine = {value!r} of {LRP_RULES}: ")
    assert says in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (place / "model_repository").exists()
    assert RULES["gamma"] is Gamma
    assert parse_rule("gamma:0.5") == Gamma(0.5)


def test_names_that_clash(packages: Packages) -> None:
    packages.install("first-rules", ABSOLUTE, {"absolute": "first_rules:Absolute"})
    packages.install(
        "second-rules", ABSOLUTE, {"absolute": "second_rules:Absolute", "gamma": "second_rules:X"}
    )
    with pytest.raises(ExtensionError, match=r"first-rules .*absolute .*second-rules .*absolute"):
        parse_rule("absolute")
    with pytest.raises(ExtensionError, match=r"second-rules 1\.2, .* gamma "):
        parse_rule("gamma:0.5")
    assert parse_rule("zplus").name == "zplus"


def test_groups_that_are_none(packages: Packages) -> None:
    packages.install("mine", rule(f"{NAMED}\n    def groups(self): return [1]"), {"mine": "mine:Mine"})
    with pytest.raises(
        InvalidOptionError, match=r"rule mine: its `groups` must give a tuple of Group, not \[1\]"
    ):
        Lrp(rules=[("Gemm", parse_rule("mine"))])
