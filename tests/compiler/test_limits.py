"""Limits: as many as may be are taken, and one more is refused or cut short."""

import importlib
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import numpy as np
import onnx
import pandas as pd
import pytest
from onnx import helper, numpy_helper

from rationale import ExactShap, Gradient, OpenReferences, PermutationShap, TreeShap, compile_model
from rationale.artifact.columns import answer_columns
from rationale.errors import LargeReferencesError, RationaleError, quoted
from rationale.evaluate.decisions.measures import _rates
from rationale.export import fit
from rationale.export.web import WebRuntime
from rationale.lowering.loading.load import _reason
from rationale.methods.propagation.lrp.texts import parse_rule
from rationale.methods.target import Stop, _list_stops
from rationale.pictures.panels import shorten_name
from rationale.references.reference_set import spreads
from rationale.schema.profile import as_profile, profile_error
from rationale.tables.archives import read_npz, write_npz
from rationale.tables.files import read_stream
from rationale.tables.workbooks import write_workbook
from rationale.terminal import shorten_rule
from tests.compiler.models import mlp, parsed, rows
from tests.references import trees

REFERENCES = rows(2, 5)


def archive(count: int) -> None:
    file = io.BytesIO()
    write_npz(file, {f"a{i}": np.zeros(1) for i in range(count)})
    read_npz(file)


def chain(count: int) -> trees.Node:
    """A tree of some leaves, with one split fewer on its longest way."""
    node: trees.Node = trees.Leaf((0.5,))
    for i in range(1, count):
        node = trees.Split(i % 5, "LEQ", (float(i),), False, trees.Leaf((float(i),)), node)
    return node


def forest(*leaves: int) -> None:
    compile_model(trees.regressor([chain(count) for count in leaves]), TreeShap(REFERENCES), targets=[0])


def powers(count: int) -> None:
    exponents = np.linspace(0.5, 4, count, dtype=np.float32)
    graph = f"g (float[N, {count}] x) => (float[N, {count}] y) {{ y = Pow (x, n) }}"
    compile_model(parsed(graph, {"n": exponents}), Gradient(), targets=[0])


def steps(count: int) -> None:
    held = {"w": np.ones((1, 2, 3), np.float32), "r": np.ones((1, 2, 2), np.float32)}
    node = "y, a = RNN <hidden_size = 2, layout = 1> (x, w, r)"
    text = f"g (float[N, {count}, 3] x) => (float[N, A, 1, 2] y) {{ {node} }}"
    compile_model(parsed(text, held), Gradient(), targets=[0])


def nodes(count: int) -> None:
    chained = " ".join(f"h{i + 1} = Tanh (h{i})" for i in range(count))
    compile_model(parsed(f"g (float[N, 1] h0) => (float[N, 1] h{count}) {{ {chained} }}"), Gradient())


def sparse(count: int) -> None:
    """Compile a model with a sparse constant of that many elements, one byte each."""
    graph = "g (float[N, 1] x) => (float[N, A] y) { f = Cast <to = 1> (s) y = Mul (x, f) }"
    model = parsed(graph)
    values = numpy_helper.from_array(np.ones(1, np.int8), "s")
    places = helper.make_tensor("places", onnx.TensorProto.INT64, [1], [0])
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [count]))
    compile_model(model, Gradient(), targets=[0])


def columns(count: int) -> None:
    answer_columns(compile_model(mlp((count, 2)), Gradient()).explain(rows(1, count)))


def page(count: int, **memory: int) -> None:
    compiled = compile_model(mlp((count, 2)), Gradient())
    manifest = compiled.manifest
    manifest = manifest.model_copy(update={"memory": manifest.memory.model_copy(update=memory)})
    fit.check_fits("m", manifest, compiled.model, WebRuntime("1.30.0", "", b""))


def graph_of_page(count: int, folder: Path) -> None:
    (folder / "1").mkdir(exist_ok=True)
    (folder / "1" / "model.onnx").write_bytes(b"m" * count)
    fit.check_size(folder)


def profile(count: int, folder: Path) -> None:
    text = "{output: y, threshold: 0.5, adverse: above}"
    (folder / "profile.yaml").write_text(text + "\n" * (count - len(text)))
    as_profile(folder / "profile.yaml")


def groups(count: int) -> None:
    file: Any = SimpleNamespace(
        further={"age": list(range(count))}, rows=[SimpleNamespace(outcome="approve")] * count
    )
    _rates("age", file)


def coalitions(count: int) -> None:
    """A row of the model for each reference: the only player is in the coalition, or it is not."""
    compile_model(mlp((1, 3)), ExactShap(rows(count, 1)), targets=[0])


# By name: the constant, a small number in place of it, what takes as many of that kind, and what it says.
REFUSED: dict[str, tuple[str, int, Callable[[int, Path], object], str]] = {
    "exponents": ("rules.pointwise.power.MOST_EXPONENTS", 3, lambda n, _: powers(n), "one to 3 different"),
    "steps": ("lowering.rewrites.recurrent.LONGEST", 3, lambda n, _: steps(n), "has 4 steps; 1 to 3 can be"),
    "nodes": ("lowering.sizes.MOST_NODES", 3, lambda n, _: nodes(n), "has 4 nodes .* the limit is 3"),
    "sparse bytes": ("lowering.loading.sparse.LARGEST", 6, lambda n, _: sparse(n), "take 7 bytes as dense"),
    "leaves": (
        "trees.tables.MOST_LEAVES",
        7,
        lambda n, _: forest(3, n - 3),
        "2 trees have 8 leaves, .* 7 at",
    ),
    "leaves of a tree": (
        "trees.tables.MOST_LEAVES_OF_TREE",
        4,
        lambda n, _: forest(2, n),
        "the largest tree has 5 leaves, .* support 4 at most",
    ),
    "splits on one way": (
        "trees.read.MOST_DEPTH",
        3,
        lambda n, _: forest(2, n + 1),
        "has 4 splits on one way",
    ),
    "weights of leaves": ("trees.read.MOST_SCORES", 4, lambda n, _: forest(n), "5 leaves for 1 scores; .* 4"),
    "players": (
        "methods.coalitions.shapley.MOST_ENUMERATED",
        3,
        lambda n, _: ExactShap(REFERENCES).coalitions(n),
        "at most 3 players, not 4",
    ),
    "players in orders": (
        "methods.coalitions.shapley.MOST_PLAYERS",
        3,
        lambda n, _: PermutationShap(REFERENCES).coalitions(n),
        "up to 3 players, not 4",
    ),
    "orders": (
        "methods.coalitions.shapley.MOST_PERMUTATIONS",
        3,
        lambda n, _: PermutationShap(REFERENCES, permutations=n),
        "1 to 3, not 4",
    ),
    "rows of the model": (
        "methods.coalitions.emit.MOST_MIXED",
        3,
        lambda n, _: coalitions(n),
        "need 4 rows of the model for each explained row; the limit is 3",
    ),
    "open references": (
        "references.reference_set.MAX_OPEN",
        3,
        lambda n, _: OpenReferences(n),
        "1 to 3, not 4",
    ),
    "arrays": ("tables.archives.MOST_MEMBERS", 3, lambda n, _: archive(n), "of 4 files: 3 at most"),
    "columns of a workbook": (
        "tables.workbooks.MOST_COLUMNS",
        3,
        lambda n, folder: write_workbook(folder / "w.xlsx", ["a"] * n, []),
        "at most 3 columns, but the table has 4",
    ),
    "characters of a cell": (
        "tables.workbooks._MOST_CHARACTERS",
        3,
        lambda n, folder: write_workbook(folder / "w.xlsx", ["a"], [["a" * n]]),
        "more than 3 characters",
    ),
    "columns of an answer": ("artifact.columns.MOST_COLUMNS", 5, lambda n, _: columns(n), "has 6 features"),
    "bytes of a profile": (
        "schema.profile._LARGEST",
        99,
        lambda n, folder: profile(n, folder),
        "is larger than",
    ),
    "groups": (
        "evaluate.decisions.measures.MOST_GROUPS",
        3,
        lambda n, _: groups(n),
        "has 4 values; .* most 3",
    ),
    "features of a page": ("export.fit.MOST_FEATURES", 5, lambda n, _: page(n), "more than 5 features"),
    "memory of a page": ("export.fit._MOST_MEMORY", 9, lambda n, _: page(5, needed=n), "MiB of memory"),
    "bytes of a page": (
        "export.fit.MOST_BYTES",
        9,
        lambda n, folder: graph_of_page(n, folder),
        "its graph takes",
    ),
    "characters of a rule": (
        "methods.propagation.lrp.texts._LONGEST",
        5,
        lambda n, _: parse_rule(f"epsilon({'0.1'.ljust(n)})"),
        "more than 5 characters",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_limit_is_met_and_one_more_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    constant, limit, take, words = REFUSED[name]
    monkeypatch.setattr(f"rationale.{constant}", limit)
    take(limit, tmp_path)
    with pytest.raises((RationaleError, ValueError), match=words):
        take(limit + 1, tmp_path)


@pytest.mark.parametrize("kind", [".npy", ".npz", ".csv", ".parquet", ".xlsx"])
def test_a_file_may_fill_the_memory_that_its_numbers_may_take(kind: str, tmp_path: Path) -> None:
    """For a file of arrays the header counts too: it is read before the numbers."""
    table = pd.DataFrame(np.arange(12.0).reshape(4, 3) + 0.5, columns=["a", "b", "c"])
    array, path = table.to_numpy(), tmp_path / f"rows{kind}"
    write: dict[str, Callable[[BinaryIO], object]] = {
        ".npy": lambda file: np.save(file, array),
        ".npz": lambda file: write_npz(file, {"a": array, "b": array}),
        ".csv": lambda file: table.to_csv(file, index=False),
        ".parquet": lambda file: table.to_parquet(file, index=False),
        ".xlsx": lambda file: table.to_excel(file, index=False),
    }
    with path.open("wb") as file:
        write[kind](file)
    whole = {".npy": 128 + array.nbytes, ".npz": 2 * (128 + array.nbytes)}.get(kind, array.nbytes)

    def read(most: int) -> np.ndarray:
        with path.open("rb") as file:
            return next(iter(read_stream(file, kind, "rows", most_bytes=most).arrays.values()))

    np.testing.assert_array_equal(read(whole), array)
    with pytest.raises(LargeReferencesError, match=rf"\b{whole - 1}\b"):
        read(whole - 1)


def categories(values: Sequence[str]) -> int:
    (spread,) = spreads({"x": np.array(values).reshape(-1, 1)}, {"x": ("x",)}, None)
    return len(spread.categories)


def numbers(count: int) -> int:
    return len(spreads({"x": np.zeros((1, count))}, {"x": tuple(map(str, range(count)))}, None))


STOP = Stop("n", "Round", "t", "r")
# By name: the constant, what makes a text or list of as many, and a mark of what is cut short.
CUT: dict[str, tuple[str, Callable[[int], str], str]] = {
    "characters of a rule": ("terminal._LONGEST", lambda n: shorten_rule("a" * n), "…"),
    "characters of a reason": (
        "lowering.loading.load.LONGEST_REASON",
        lambda n: _reason(ValueError("a" * n)),
        "…",
    ),
    "characters of a name": ("pictures.panels._LONGEST_NAME", lambda n: shorten_name("a" * n), "…"),
    "names": ("errors._MOST_NAMES", lambda n: quoted(["a"] * n), " more"),
    "faults of a profile": (
        "schema.profile._MOST",
        lambda n: str(profile_error("p", ["a"] * n)),
        "of which the first",
    ),
    "ends of attributions": ("methods.target.MOST_STOPS", lambda n: _list_stops([STOP] * n), " more"),
    "characters of a category": (
        "references.reference_set._LONGEST",
        lambda n: f"{categories(['a' * n])} known",
        "0 known",
    ),
    "categories": (
        "references.reference_set._MOST_CATEGORIES",
        lambda n: f"{n - categories(list(map(str, range(n))))} unknown",
        "1 unknown",
    ),
    "features with a spread": (
        "references.reference_set._MOST_FEATURES",
        lambda n: f"{numbers(n)} known",
        "0 known",
    ),
}


@pytest.mark.parametrize("name", CUT)
def test_as_many_as_there_may_be_stay_whole(name: str) -> None:
    constant, make, mark = CUT[name]
    module, _, attribute = f"rationale.{constant}".rpartition(".")
    limit = getattr(importlib.import_module(module), attribute)
    texts = make(limit), make(limit + 1)
    assert [mark in text for text in texts] == [False, True], texts
