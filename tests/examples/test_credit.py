"""`examples/credit`: the files are what make_credit.py makes, and what its README says."""

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from rationale.schema.profile import as_profile

FOLDER = Path(__file__).parents[2] / "examples" / "credit"
PROFILE = as_profile(FOLDER / "decision.yaml")
CUT_OFF = PROFILE.threshold

# On one machine the files come out equal to the byte. Another BLAS rounds otherwise, and 1,770 steps of
# training pass that on to the weights: the probabilities may move, by far less than a decision would notice.
PROBABILITY_ATOL = 0.01
AUC_ATOL = 0.002


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_credit", FOLDER / "make_credit.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["make_credit"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def credit_files(maker, tmp_path_factory):
    """(what make_credit returned, the folder that it was written to)"""
    folder = tmp_path_factory.mktemp("credit")
    credit = maker.make_credit()
    maker.write(credit, folder)
    return credit, folder


def read_rows(folder: Path, name: str):
    return np.loadtxt(folder / name, delimiter=",", skiprows=1, dtype=np.float32, ndmin=2)


def run(model: Path, rows):
    """[N] default probabilities and [N] logits."""
    session = ort.InferenceSession(model)
    probability, logit = session.run(["default_probability", "score_logit"], {"applicant": rows})
    return probability[:, 0], logit[:, 0]


@pytest.mark.full
def test_the_network_is_made_again(credit_files):
    credit, folder = credit_files
    rows = credit.applications[:2000].astype(np.float32)
    remade, _ = run(folder / "credit.onnx", rows)
    committed, _ = run(FOLDER / "credit.onnx", rows)
    np.testing.assert_allclose(committed, remade, rtol=0, atol=PROBABILITY_ATOL)
    assert np.ptp(committed) > 0.9  # a constant would pass the line above


@pytest.mark.parametrize("name", ["applicants.csv", "applicants.json"])
def test_the_applicants_are_made_again(credit_files, name):
    assert (credit_files[1] / name).read_text() == (FOLDER / name).read_text()


def test_the_references_are_typical_approved_applications(credit_files):
    """Those drawn may change where a row on the limit changes sides, so they are judged, not compared."""
    credit, _ = credit_files
    rows = read_rows(FOLDER, "references.csv")
    probability, _ = run(FOLDER / "credit.onnx", rows)
    everyone = {row.tobytes() for row in credit.applications.astype(np.float32)}
    assert rows.shape == (100, 10)
    assert all(row.tobytes() in everyone for row in rows)
    assert probability.max() < CUT_OFF
    assert 0.04 < probability.mean() < 0.10


def test_the_near_ones_only_just_pass(credit_files):
    credit, _ = credit_files
    rows = read_rows(FOLDER, "near_threshold.csv")
    probability, _ = run(FOLDER / "credit.onnx", rows)
    passing, _ = run(FOLDER / "credit.onnx", credit.applications[:15_000].astype(np.float32))
    everyone = {row.tobytes() for row in credit.applications.astype(np.float32)}
    assert rows.shape == (100, 10)
    assert all(row.tobytes() in everyone for row in rows)
    nearest = np.sort(passing[passing < CUT_OFF])[-100:]
    np.testing.assert_allclose(np.sort(probability), nearest, atol=PROBABILITY_ATOL)


def test_the_profile_knows_every_feature(maker):
    assert list(PROFILE.features) == list(maker.FEATURES)
    assert {rule.reason for rule in PROFILE.features.values()} == PROFILE.reasons.keys()


def test_the_graph_computes_what_was_trained(maker):
    """Standardisation is in the graph: raw units in; the numpy network reads its weights from the file."""
    model = onnx.load(FOLDER / "credit.onnx")
    array = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    layers = [(array[f"weight_{i}"], array[f"bias_{i}"]) for i in (1, 2, 3)]
    rows = read_rows(FOLDER, "references.csv")
    expected = maker.predict(array["mean"], array["scale"], layers, rows)
    probability, logit = run(FOLDER / "credit.onnx", rows)
    np.testing.assert_allclose(probability, expected, rtol=1e-5)
    np.testing.assert_allclose(probability, 1 / (1 + np.exp(-logit)), rtol=1e-5)
    assert [node.op_type for node in model.graph.node][:2] == ["Sub", "Div"]
    assert (model.opset_import[0].version, model.ir_version) == (21, 10)


def test_the_readme_says_what_was_measured(credit_files, maker):
    credit, _ = credit_files
    text = (FOLDER / "README.md").read_text()
    auc = float(re.search(r"AUC is \*\*(0\.\d+)\*\*", text)[1])
    best = float(re.search(r"probabilities reach (0\.\d+)", text)[1])
    rate = float(re.search(r"([\d.]+)% of the applications default", text)[1]) / 100
    assert auc == pytest.approx(credit.auc, abs=AUC_ATOL)
    assert best == pytest.approx(credit.best_auc, abs=AUC_ATOL)
    assert rate == pytest.approx(credit.default_rate, abs=0.001)
    assert re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE) == list(maker.FEATURES)


def test_the_files_agree_with_each_other(maker):
    header = ",".join(maker.FEATURES)
    instances = json.loads((FOLDER / "applicants.json").read_text())["instances"]
    assert (FOLDER / "references.csv").read_text().splitlines()[0] == header
    assert (FOLDER / "applicants.csv").read_text().splitlines()[0] == header
    assert [tuple(instance) for instance in instances] == [tuple(maker.FEATURES)] * 4
    rows = np.array([list(instance.values()) for instance in instances], dtype=np.float32)
    np.testing.assert_array_equal(rows, read_rows(FOLDER, "applicants.csv"))
    probability, _ = run(FOLDER / "credit.onnx", rows)
    assert (probability >= CUT_OFF).tolist() == [False, True, True, False]
    assert maker.CUT_OFF == CUT_OFF
    assert sum(path.stat().st_size for path in FOLDER.iterdir() if path.is_file()) < 200_000
