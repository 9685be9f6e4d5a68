"""The number of rows that `rationale explain` prints and saves is the same for every batch size."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rationale import Compiled, DeepShap, compile_model
from rationale.portfolios import explain
from rationale.portfolios.explain import explain_file, explained_batches
from rationale.schema.request import silent
from tests.compiler.models import FEATURES, NAMES, mlp, rows

COUNT = 7


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    return compile_model(mlp(), DeepShap(rows(4, FEATURES)), targets=[0], feature_names=NAMES)


def in_batches(compiled: Compiled, size: int) -> Compiled:
    measured = compiled.manifest.measured.model_copy(update={"max_batch": size})
    return replace(compiled, manifest=compiled.manifest.model_copy(update={"measured": measured}))


@pytest.mark.parametrize("size", [1, 2, 3, COUNT, COUNT + 1])
@pytest.mark.parametrize(
    ("shown", "printed"),
    [(0, 0), (1, 1), (3, 3), (COUNT - 1, COUNT - 1), (COUNT, COUNT), (99, COUNT), (None, COUNT)],
)
@pytest.mark.parametrize("is_saved", [True, False])
def test_rows_are_counted_through_all_batches(
    compiled: Compiled,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    size: int,
    shown: int | None,
    printed: int,
    is_saved: bool,
) -> None:
    monkeypatch.setattr(explain, "open_entry", lambda *_: in_batches(compiled, size))
    np.save(tmp_path / "x.npy", rows(COUNT, FEATURES, seed=2))
    save = tmp_path / "out.npz" if is_saved else None
    lines = explain_file(tmp_path, "m", tmp_path / "x.npy", save, 2, shown, silent)
    assert [line.partition(",")[0] for line in lines if line.startswith("Row ")] == [
        f"Row {i}" for i in range(1, printed + 1)
    ]
    left = [line for line in lines if "more row" in line]
    assert [line.split()[0] for line in left] == [str(COUNT - printed)] * (printed < COUNT)
    if save is not None:
        assert len(np.load(save)["explained_value"]) == COUNT


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, COUNT])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_no_more_rows_are_explained_than_are_asked_for(compiled: Compiled, size: int, count: int) -> None:
    inputs = {compiled.manifest.inputs[0].name: rows(COUNT, FEATURES)}
    answers = list(explained_batches(in_batches(compiled, size), inputs, count))
    lengths = [len(answer[compiled.manifest.explained_value]) for answer in answers]
    assert (sum(lengths), max(lengths, default=0)) == (count, min(size, count))
