"""The entry that the project keeps in model_repository/ is what the compiler makes today."""

from pathlib import Path

import numpy as np

from rationale import DeepShap, compile_model
from rationale.artifact.entry import check_entry, open_entry
from rationale.references.tables import read_rows

ROOT = Path(__file__).parents[3]
CREDIT = ROOT / "examples/credit"


def test_it_answers_as_a_new_compile_does() -> None:
    references = read_rows(CREDIT / "references.csv").arrays[None]
    fresh = compile_model(CREDIT / "credit.onnx", DeepShap(references), output="default_probability")
    kept = open_entry(ROOT / "model_repository", "credit")
    x = references[:7] * np.linspace(0.5, 1.5, 7)[:, None]
    for name, value in fresh.explain(x).items():
        np.testing.assert_allclose(kept.explain(x)[name], value, atol=1e-6 * np.abs(value).max(), rtol=0)
    assert kept.manifest.digests.model == fresh.manifest.digests.model
    assert kept.manifest.digests.references == fresh.manifest.digests.references


def test_it_passes_its_check() -> None:
    measured = check_entry(ROOT / "model_repository", "credit").measured
    assert measured.outputs_error <= 1e-6
    assert measured.completeness_gap is not None
    assert measured.completeness_gap <= 1e-4
