"""Seams of the compile: methods are known by their engines, models lowered once, results frozen."""

import ast
from collections.abc import Callable, Iterator
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import rationale.compile
from rationale import (
    Auto,
    Comparisons,
    DeepShap,
    ExactShap,
    Gradient,
    IntegratedGradients,
    Lrp,
    TreeShap,
    compile_model,
    lowering,
)
from rationale.methods.engine import Engine
from rationale.schema.methods import METHODS
from tests.compiler.models import FEATURES, NAMES, mlp, rows
from tests.references import trees

ROOT = Path(__file__).parents[3]
ENGINES = {f"compiler/rationale/methods/{package}/" for package in ("propagation", "trees", "coalitions")}
CLASSES = {name for name in rationale.__all__ if hasattr(getattr(rationale, name), "engine")}
KINDS = {
    *CLASSES,
    "Method",
    *"CoalitionMethod Engine PropagationMethod TreeMethod Walk".split(),
}
PROFILE = {"output": "y[1]", "threshold": 0.4, "adverse": "above"}


def questions(path: Path) -> Iterator[tuple[int, set[str]]]:
    """Each line on which `isinstance` is called, and the classes it asks about."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "isinstance":
            yield node.lineno, {n.id for n in ast.walk(node.args[1]) if isinstance(n, ast.Name)}


def test_no_one_asks_what_kind_of_method_it_is() -> None:
    """But an engine, which knows its own, and the one place that tells what is no method."""
    violations = []
    for folder in ("compiler", "service"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = str(path.relative_to(ROOT))
            checks = [line for line, classes in questions(path) if classes & KINDS]
            violations += [
                (name, line)
                for line in checks
                if not any(name.startswith(engine_folder) for engine_folder in ENGINES)
            ]
    assert [name for name, _ in violations] == ["compiler/rationale/methods/engine.py"]


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_every_method_names_an_engine(name: str) -> None:
    method = getattr(rationale, name)
    assert isinstance(method.engine, Engine)
    assert method.name in METHODS


@pytest.fixture
def lowered(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many times models were lowered."""
    count = [0]
    lower = lowering.lower

    def counted(*args: Any) -> Any:
        count[0] += 1
        return lower(*args)

    monkeypatch.setattr(rationale.compile, "lower", counted)
    return lambda: count[0]


@pytest.mark.parametrize(
    "options",
    [
        {"method": DeepShap(rows(4, FEATURES))},
        {"method": Auto(rows(4, FEATURES))},
        {"method": ExactShap(rows(4, FEATURES))},
        {"method": Lrp(), "layers": "all"},
        {"method": IntegratedGradients(rows(3, FEATURES)), "targets": [0]},
        {"method": Gradient(), "groups": {"two": ["x[0]", "x[1]"]}},
    ],
    ids=lambda options: options["method"].name,
)
def test_a_model_is_lowered_once(options: dict[str, Any], lowered: Callable[[], int]) -> None:
    compile_model(mlp(), **options)
    assert lowered() == 1


def test_a_decision_with_comparisons_lowers_once_too(lowered: Callable[[], int]) -> None:
    compiled = compile_model(
        mlp(),
        DeepShap(rows(6, FEATURES)),
        feature_names=NAMES,
        decision=PROFILE,
        comparisons=Comparisons({"others": DeepShap(rows(3, FEATURES))}, draws=2),
    )
    assert len(compiled.comparisons) == 3
    assert lowered() == 1


def test_trees_are_lowered_once(lowered: Callable[[], int]) -> None:
    compile_model(trees.regressor(trees.random_trees(1, ["LEQ"])), TreeShap(trees.rows(1, 3)))
    assert lowered() == 1


def test_what_a_compile_returns_does_not_change() -> None:
    compiled = compile_model(mlp(), Gradient())
    with pytest.raises(FrozenInstanceError):
        compiled.manifest = compiled.manifest
    with pytest.raises(ValidationError, match="frozen"):
        compiled.manifest.model = "other"
