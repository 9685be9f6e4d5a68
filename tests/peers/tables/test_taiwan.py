"""A network trained on real credit data, explained for real people against real references.

The data (UCI "Default of Credit Card Clients") is read by tests.needs.
"""

import csv
import subprocess
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import nn

from rationale import DeepShap, Manifest, compile_model
from rationale.evaluate.explained_model import ExplainedModel, GivenReferences, evaluated_pairs
from rationale.evaluate.shapley import compare
from rationale.references.centroids import balance_weights, make_centroids, outputs_of
from tests.needs import TAIWAN, need_data
from tests.peers.agreement import ATOL, GAP, OUTPUTS, RTOL, TRUTH, error
from tests.peers.networks import Case, export
from tests.peers.others import shap_values
from tests.references.deeplift import Standardise, predict

ROWS, REFERENCES, TRAINED = 1000, 100, 24_000
LEAST_AUC = 0.70  # the best published models reach about 0.78


@dataclass(frozen=True)
class Credit:
    """The data and a network trained on it.

    Attributes:
        names: the 23 features; x: [30000, 23] in raw units; case: 1,000 rows and 100 references that the
            network has not seen.
    """

    names: list[str]
    x: np.ndarray
    label: np.ndarray
    case: Case


@pytest.fixture(scope="module")
def credit() -> Credit:
    with need_data(TAIWAN).open(newline="") as file:
        header, *rows = csv.reader(file)
    table = np.array(rows, np.float32)
    x, label = table[:, 1:-1], table[:, -1]  # ID first, the label last
    order = np.random.default_rng(11).permutation(len(x))
    x, label = x[order], label[order]
    network = trained(torch.from_numpy(x[:TRAINED]), torch.from_numpy(label[:TRAINED]))
    held_out = x[TRAINED:]
    case = Case(network, held_out[:ROWS], held_out[ROWS : ROWS + REFERENCES])
    return Credit(header[1:-1], x, label, case)


def trained(x: torch.Tensor, label: torch.Tensor, epochs: int = 6, batch: int = 256) -> nn.Sequential:
    """Raw units in, the probability of default out: [N, 1]."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = nn.Sequential(
            Standardise(x.mean(dim=0), x.std(dim=0)),
            *(
                nn.Linear(x.shape[1], 32),
                nn.ReLU(),
                nn.Linear(32, 16),
                nn.Tanh(),
                nn.Linear(16, 1),
                nn.Sigmoid(),
            ),
        )
        optimiser = torch.optim.Adam(network.parameters(), lr=3e-3)
        for _ in range(epochs):
            for chosen in torch.randperm(len(x)).split(batch):
                optimiser.zero_grad()
                nn.functional.binary_cross_entropy(network(x[chosen])[:, 0], label[chosen]).backward()
                optimiser.step()
    return network.eval().requires_grad_(False)


def assert_agrees_with_shap(ours: np.ndarray, peer: np.ndarray) -> None:
    """Attributions are parts of a probability, whatever a feature's unit; what the units do is to leave some
    features (a few dollars of a bill) with parts too small for an absolute tolerance to see. So the absolute
    tolerance is scaled to the largest attribution."""
    np.testing.assert_allclose(ours, peer, rtol=RTOL, atol=ATOL * np.abs(peer).max())


def test_model_is_a_real_one(credit: Credit) -> None:
    scores = predict(credit.case.network, credit.x[TRAINED:])[:, 0]
    assert roc_auc_score(credit.label[TRAINED:], scores) > LEAST_AUC


@pytest.mark.parametrize("exporter", ["torchscript", pytest.param("dynamo", marks=pytest.mark.full)])
def test_agrees(credit: Credit, exporter: str) -> None:
    """1,000 rows against 100 references: SHAP, float64, completeness, outputs."""
    case = credit.case
    answer = compile_model(export(case, exporter), DeepShap(case.references)).explain(case.x)
    attributions = answer["x_attributions"]
    assert attributions.shape == (ROWS, 1, 23)
    assert_agrees_with_shap(attributions, shap_values(case.fresh(), case.x, case.references))
    assert error(attributions, case.truth()) <= TRUTH
    expected = predict(case.network, case.x) - predict(case.network, case.references).mean(axis=0)
    assert np.abs(answer["completeness_gap"]).max() <= GAP * np.abs(expected).max()
    assert error(attributions.sum(axis=2), expected) <= GAP
    assert error(answer["y"], predict(case.network, case.x)) <= OUTPUTS


@pytest.mark.full
def test_command_line(credit: Credit, tmp_path: Path) -> None:
    """The same from files: columns chosen by name from tables that have more, and named in the answer."""
    case = credit.case
    model, references, rows = (tmp_path / name for name in ("credit.onnx", "typical.csv", "applicants.csv"))
    model.write_bytes(export(case, "torchscript").SerializeToString())
    write_table(references, ["default", *reversed(credit.names), "ID"], case.references)
    write_table(rows, ["default", *reversed(credit.names), "ID"], case.x)
    repository, saved = tmp_path / "repository", tmp_path / "answer.npz"
    features = ",".join(credit.names)
    rationale(
        *("compile", model, "--name", "credit", "--references", references),
        *("--features", features, "--repository", repository),
    )
    manifest = Manifest.read(repository / "credit_explain" / "explanation.json")
    assert manifest.explained[0].feature_names == tuple(credit.names)
    assert manifest.references is not None
    assert manifest.references.given == REFERENCES
    rationale("explain", "credit", "--input", rows, "--repository", repository, "--save", saved)
    with np.load(saved) as answer:
        assert error(answer["x_attributions"], case.truth()) <= TRUTH


@pytest.mark.full
def test_deepshap_beside_shapley_values(credit: Credit) -> None:
    """The figures of docs/methods/deepshap.md."""
    case = credit.case
    compiled = compile_model(export(case, "torchscript"), DeepShap(case.references))
    subject = ExplainedModel(compiled, compiled.fit(case.x[:30]))
    references = GivenReferences({"x": case.references})
    chosen, _ = compare(subject, evaluated_pairs(subject), references, 10_000_000, 0, lambda *_: None)
    assert max(chosen.errors) <= 0.01
    spans = [np.quantile(values, [0, 0.5, 1]) for values in (chosen.distances, chosen.correlations)]
    np.testing.assert_allclose(spans, [[0.08, 0.15, 0.42], [0.90, 0.98, 1.00]], atol=0.03)
    assert [chosen.first, chosen.largest] == pytest.approx([26 / 30, 23 / 30], abs=0.1)


@pytest.mark.full
def test_centroids_keep_the_base_value(credit: Credit, tmp_path: Path) -> None:
    """The figures of docs/references.md: 40 centroids of 24,000 clients, by their groups' sizes and by
    weights that keep the mean output; attributions beside those by 1,500 clients."""
    model, clients = tmp_path / "credit.onnx", {None: credit.x[:TRAINED].astype(np.float64)}
    model.write_bytes(export(credit.case, "torchscript").SerializeToString())
    centres = make_centroids(clients, 40)
    _, outputs = outputs_of(model, clients, centres)
    (probability,) = outputs
    weighted = balance_weights(centres, clients, outputs)
    by_size, by_weight = (centres.weights @ probability.centroids, weighted.weights @ probability.centroids)
    assert (round(float(by_size[0]), 2), round(float(probability.mean[0]), 2)) == (0.19, 0.23)
    assert by_weight == pytest.approx(probability.mean, rel=1e-5)
    off = [
        distance(model, credit, DeepShap(chosen.arrays[None], chosen.weights))
        for chosen in (centres, weighted)
    ]
    assert off == pytest.approx([0.18, 0.11], abs=0.03)


def distance(model: Path, credit: Credit, method: DeepShap) -> float:
    """Median over 100 rows of the attributions' distance from those by 1,500 clients."""
    some = np.random.default_rng(5).choice(TRAINED, 1500, replace=False)
    chosen, expected = (
        compile_model(model, m).explain(credit.case.x[:100])["x_attributions"][:, 0]
        for m in (method, DeepShap(credit.x[some]))
    )
    return float(np.median(np.abs(chosen - expected).sum(axis=1) / np.abs(expected).sum(axis=1)))


def write_table(path: Path, header: list[str], rows: np.ndarray) -> None:
    """Rows whose features stand in reverse between two other columns, with a header."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows([0, *row[::-1].tolist(), i] for i, row in enumerate(rows))


def rationale(*arguments: object) -> None:
    command = [str(Path(sysconfig.get_path("scripts")) / "rationale"), *map(str, arguments)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert process.returncode == 0, process.stderr
