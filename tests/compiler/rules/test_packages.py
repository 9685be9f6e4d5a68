"""Packages that bring rules: found when the compiler's are imported, listed, recorded, named where broken."""

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import onnx
import pytest

from rationale import Manifest
from rationale.extensions import RULES, InstalledExtension
from rationale.rules import rule as rules
from rationale.rules.rule import Kind, Rule, find_rule, package_of
from rationale.schema.manifest import Extension
from rationale_service.models.explainers.worker import CompileOrder
from tests.compiler.rules.packaged import DEFINITION, MODEL, SNAKE, installed, python

SNAKES = ("snake-rules", "2.5", RULES)
COMMAND = "import sys; from rationale_service.cli.main import app; app(sys.argv[1:])"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a model whose operator a package explains, and that package."""
    model = onnx.parser.parse_model(MODEL)
    model.functions.append(onnx.parser.parse_function(DEFINITION))
    onnx.save(model, tmp_path / "snake.onnx")
    return installed(tmp_path, "snake-rules", SNAKE)


@pytest.mark.full
def test_the_command_line_has_its_rules_and_the_manifest_names_it(place: Path) -> None:
    np.save(place / "r.npy", np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32))
    result = python(place, COMMAND, "compile", "snake.onnx", "--name", "snake", "--references", "r.npy")
    assert result.returncode == 0, result.stderr
    manifest = Manifest.read(place / "model_repository" / "snake_explain" / "explanation.json")
    assert [(e.package, e.version, e.group) for e in manifest.extensions] == [SNAKES]
    graph = onnx.load(place / "model_repository" / "snake_explain" / "1" / "model.onnx").graph
    assert "Snake" not in {node.op_type for node in graph.node}  # its value is made of ONNX's operators


def test_the_gateways_worker_has_its_rules(place: Path) -> None:
    options = {"method": "gradient", "deployment": {}}
    entry = place / "snake_explain"
    order = CompileOrder(str(place / "snake.onnx"), "snake", str(entry), options, None, 4 << 30)
    code = (
        "import sys, json\n"
        "from rationale_service.models.explainers.worker import CompileOrder, run\n"
        "run(CompileOrder(**json.loads(sys.argv[1])), sys.stdout)"
    )
    result = python(place, code, order.to_line().decode())
    assert result.returncode == 0, result.stderr
    extensions = Manifest.read(entry / "explanation.json").extensions
    assert [(e.package, e.version, e.group) for e in extensions] == [SNAKES]


@pytest.mark.full
def test_the_table_of_operators_lists_it(place: Path) -> None:
    result = python(place, COMMAND, "operators")
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines[0].endswith(" package")
    row = "example.Snake pointwise all y = x + sin²(αx)/α; dy/dx = 1 + sin 2αx. snake-rules 2.5"
    assert row in lines


@pytest.mark.full
def test_a_package_that_is_not_used_is_not_recorded(place: Path) -> None:
    code = (
        "import onnx; from rationale import Gradient, compile_model\n"
        'm = onnx.parser.parse_model(\'<ir_version: 8, opset_import: ["": 17]>'
        " n (float[N, 3] x) => (float[N, 3] y) { y = Relu (x) }')\n"
        "print(compile_model(m, Gradient(), targets=[0]).manifest.extensions)"
    )
    result = python(place, code)
    assert result.stdout == "()\n", result.stderr


@pytest.mark.full
@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import nowhere_at_all", "ModuleNotFoundError: No module named 'nowhere_at_all'"),
        (SNAKE.replace("Kind.POINTWISE", "'pointwize'"), "ValueError: 'pointwize' is not a valid Kind"),
    ],
)
def test_a_package_that_cannot_be_imported_is_named(place: Path, code: str, reason: str) -> None:
    installed(place / "more", "broken-rules", code)
    import_path = f"import sys; sys.path.insert(0, {str(place / 'more')!r})\n"
    compiling = ("compile", "snake.onnx", "--name", "x", "--method", "gradient")
    for arguments in (compiling, ("operators",)):
        result = python(place, import_path + COMMAND, *arguments)
        assert result.returncode == 2
        assert result.stderr.startswith("error: package broken-rules 2.5, entry point ")
        assert result.stderr.endswith(
            f"of rationale.rules: it cannot be imported ({reason}). Repair the package, or uninstall it: "
            "pip uninstall broken-rules\n"
        )


@pytest.mark.full
def test_its_module_may_be_imported_first(place: Path) -> None:
    code = (
        "import snake_rules; from rationale.rules.rule import find_rule\n"
        "print(find_rule('Snake', 'example').kind)"
    )
    result = python(place, code)
    assert result.stdout == "pointwise\n", result.stderr


def declared_in(module: str) -> Rule:
    def forward() -> None: ...

    forward.__module__ = module
    return Rule("X", "example", Kind.LOCAL, forward)


@pytest.mark.full
def test_a_rule_belongs_to_the_package_that_is_nearest_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = (
        InstalledExtension(
            EntryPoint(name, module, RULES),
            Extension(group=RULES, name=name, value=module, package=name, version="1"),
        )
        for name, module in (("a", "company.a.rules"), ("b", "company.b"))
    )
    monkeypatch.setattr(rules, "rule_packages", lambda: (a, b))
    assert package_of(declared_in("company.a.more")) == a.recorded
    assert package_of(declared_in("company.b.deep.down")) == b.recorded
    assert package_of(declared_in("companies")) is None
    relu = find_rule("Relu")
    assert relu is not None
    assert package_of(relu) is None
    softmax = find_rule("Softmax")
    assert softmax is not None
    assert softmax.forward.__module__.startswith("rationale.rules.")


@pytest.mark.full
def test_the_tests_see_no_package() -> None:
    assert rules.rule_packages() == (), sys.path
