"""An LSTM and a bidirectional GRU classifier from PyTorch, by both of its exporters."""

import contextlib
import io
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from rationale import AttnLrp, DeepShap, ExpectedGradients, Gradient, IntegratedGradients, Lrp, compile_model
from tests.tolerances import COMPLETE_32, OUTPUTS_32, PARITY_32

pytestmark = pytest.mark.full

STEPS, WIDTH, SIZE, CLASSES, N, K = 6, 4, 5, 3, 3, 2


class RecurrentClassifier(nn.Module):
    """Scores from the last states of two layers; or, both ways and steps first, from states and a mean."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.both = kind == "GRU"
        self.recurrent = getattr(nn, kind)(
            WIDTH, SIZE, num_layers=1 if self.both else 2, bidirectional=self.both, batch_first=not self.both
        )
        self.head = nn.Linear(2 * SIZE if self.both else SIZE, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.both:
            return self.head(self.recurrent(x)[1][0][-1])
        start = x.new_zeros(2, x.shape[0], SIZE)
        y, last = self.recurrent(x.transpose(0, 1), start)
        return self.head(torch.cat([last[0], last[1]], dim=1) + y.mean(dim=0))


def exported(network: nn.Module, *, dynamo: bool) -> onnx.ModelProto:
    """x [N, STEPS, WIDTH] to y [N, CLASSES], with a dynamic batch."""
    options: dict[str, Any] = {"dynamic_axes": {"x": {0: "N"}, "y": {0: "N"}}, "dynamo": False}
    if dynamo:
        options = {"dynamic_shapes": ({0: torch.export.Dim("N")},), "dynamo": True, "external_data": False}
        options["verbose"] = False
    with (
        tempfile.TemporaryDirectory() as folder,
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        warnings.simplefilter("ignore")  # both exporters warn about themselves
        path, example = Path(folder) / "model.onnx", torch.randn(2, STEPS, WIDTH)
        names = {"input_names": ["x"], "output_names": ["y"]}
        torch.onnx.export(network.eval(), (example,), path, **names, **options)
        return onnx.load(path)


def rows(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, STEPS, WIDTH)).astype(np.float32)


each_network = pytest.mark.parametrize("kind", ["LSTM", "GRU"])


@each_network
@pytest.mark.parametrize("dynamo", [False, True], ids=["TorchScript", "torch.export"])
def test_a_classifier_is_complete_and_its_rows_are_explained_alone(kind: str, dynamo: bool) -> None:
    network, x = RecurrentClassifier(kind), rows(N, 1)
    compiled = compile_model(exported(network, dynamo=dynamo), DeepShap(rows(K, 2)), targets="all")
    answer = compiled.explain(x)
    with torch.no_grad():
        y = network(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(answer["y"], y, atol=OUTPUTS_32, rtol=0)
    change = np.abs(answer["explained_value"] - answer["base_value"]).max()
    assert change > 1e-2
    assert np.abs(answer["completeness_gap"]).max() <= COMPLETE_32 * change
    alone = np.concatenate([compiled.explain(row[None])["x_attributions"] for row in x])
    np.testing.assert_allclose(alone, answer["x_attributions"], atol=PARITY_32 * np.abs(alone).max(), rtol=0)


@each_network
def test_the_gradient_is_autograd(kind: str) -> None:
    network, x = RecurrentClassifier(kind), rows(N, 3)
    answer = compile_model(exported(network, dynamo=False), Gradient(), targets="all").explain(x)
    inputs = torch.from_numpy(x).requires_grad_()
    y = network(inputs)
    want = np.stack(
        [torch.autograd.grad(y[:, c].sum(), inputs, retain_graph=True)[0] for c in range(CLASSES)], 1
    )
    np.testing.assert_allclose(answer["x_attributions"], want, atol=PARITY_32 * np.abs(want).max(), rtol=0)


class Packed(nn.Module):
    """Rows of their own lengths, packed: steps beyond them are not seen."""

    def __init__(self, *, is_sorted: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.recurrent = nn.LSTM(WIDTH, SIZE, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * SIZE, CLASSES)
        self.is_sorted = is_sorted

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(
            x, lengths, batch_first=True, enforce_sorted=self.is_sorted
        )
        y, (last, _) = self.recurrent(packed)
        whole, _ = nn.utils.rnn.pad_packed_sequence(y, batch_first=True, total_length=STEPS)
        return self.head(torch.cat([last[0], last[1]], dim=1) + whole.mean(dim=1))


@pytest.mark.parametrize("is_sorted", [True, False])
def test_packed_sequences_are_explained_up_to_their_lengths(is_sorted: bool) -> None:
    """Sorted with a dynamic batch, or not with one of 1; rows are sent in another order."""
    network = Packed(is_sorted=is_sorted).eval()
    example = (torch.randn(2 if is_sorted else 1, STEPS, WIDTH), torch.tensor([4, 2] if is_sorted else [4]))
    axes = {name: {0: "N"} for name in ("x", "lengths", "y")} if is_sorted else {}
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network,
            example,
            file,
            input_names=["x", "lengths"],
            output_names=["y"],
            dynamic_axes=axes,
            dynamo=False,
        )
    model = onnx.load_from_string(file.getvalue())
    compiled = compile_model(model, DeepShap({"x": rows(K, 8)}), targets="all", inputs=["x"])
    x, lengths = rows(N, 9), np.asarray([3, STEPS, 2])
    answer = compiled.explain({"x": x, "lengths": lengths})
    change = np.abs(answer["explained_value"] - answer["base_value"]).max()
    assert np.abs(answer["completeness_gap"]).max() <= COMPLETE_32 * change
    for n, length in enumerate(lengths):
        assert not answer["x_attributions"][n, :, length:].any()
        with torch.no_grad():
            y = network(torch.from_numpy(x[n : n + 1]), torch.tensor([int(length)]))
        np.testing.assert_allclose(answer["explained_value"][n], y[0], atol=OUTPUTS_32, rtol=0)


METHODS: dict[str, Any] = {
    "IntegratedGradients": IntegratedGradients(0, steps=20),
    "ExpectedGradients": ExpectedGradients(rows(K, 5), samples=10),
    "Lrp": Lrp(),
    "AttnLrp": AttnLrp(),
}


@pytest.mark.parametrize("name", METHODS)
def test_every_method_walks_an_lstm(name: str) -> None:
    """Finite, alive, and row by row."""
    compiled = compile_model(
        exported(RecurrentClassifier("LSTM"), dynamo=False), METHODS[name], targets="all"
    )
    x = rows(N, 4)
    got = compiled.explain(x)["x_attributions"]
    assert np.isfinite(got).all()
    assert np.abs(got).max() > 1e-4
    alone = compiled.explain(x[1:2])["x_attributions"]
    np.testing.assert_allclose(alone, got[1:2], atol=PARITY_32 * np.abs(got).max(), rtol=0)


# -- the oracle: DeepLIFT of an LSTM, gate by gate -------------------------------------------------------


def trace(layer: nn.LSTM, level: int, sequence: np.ndarray) -> list[dict[str, np.ndarray]]:
    """Every value of one layer at every step, for one row [STEPS, …], in float64."""
    w, u, b, d = (
        getattr(layer, f"{name}_l{level}").detach().double().numpy()
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    )
    h, c, steps = np.zeros(SIZE), np.zeros(SIZE), []
    for x in sequence:
        z = w @ x + u @ h + b + d
        zi, zf, zg, zo = np.split(z, 4)
        i, f, o = (1 / (1 + np.exp(-v)) for v in (zi, zf, zo))
        g, before = np.tanh(zg), c
        c = f * before + i * g
        h = o * np.tanh(c)
        step = {"zi": zi, "zf": zf, "zg": zg, "zo": zo, "i": i, "f": f, "g": g, "o": o}
        steps.append({**step, "before": before, "c": c, "tanh c": np.tanh(c), "h": h})
    return steps


def multipliers(layer: nn.LSTM, level: int, x: np.ndarray, r: np.ndarray, arriving: np.ndarray) -> np.ndarray:
    """Those of the layer's inputs [STEPS, …], from those of its h at every step; secants and midpoints."""
    w, u = (
        getattr(layer, f"{name}_l{level}").detach().double().numpy() for name in ("weight_ih", "weight_hh")
    )
    at_x, at_r = trace(layer, level, x), trace(layer, level, r)
    m_h, m_c, leaving = np.zeros(SIZE), np.zeros(SIZE), np.zeros((len(x), w.shape[1]))
    for t in reversed(range(len(x))):
        a, b = at_x[t], at_r[t]
        middle = {name: (a[name] + b[name]) / 2 for name in a}

        def secant(y: str, z: str, a: dict[str, Any] = a, b: dict[str, Any] = b) -> np.ndarray:
            return (a[y] - b[y]) / (a[z] - b[z])

        m = m_h + arriving[t]
        m_c = m_c + m * middle["o"] * secant("tanh c", "c")
        m_z = np.concatenate(
            [
                m_c * middle["g"] * secant("i", "zi"),
                m_c * middle["before"] * secant("f", "zf"),
                m_c * middle["i"] * secant("g", "zg"),
                m * middle["tanh c"] * secant("o", "zo"),
            ]
        )
        leaving[t], m_h, m_c = m_z @ w, m_z @ u, m_c * middle["f"]
    return leaving


def test_an_lstm_is_deeplift_gate_by_gate() -> None:
    network, x, references = RecurrentClassifier("LSTM"), rows(N, 6), rows(K, 7)
    compiled = compile_model(exported(network, dynamo=False), DeepShap(references), targets="all")
    got = compiled.explain(x)["x_attributions"]
    layer, head = network.recurrent, network.head.weight.detach().double().numpy()
    want = np.zeros_like(got, np.float64)
    for n, target, k in np.ndindex(N, CLASSES, K):
        row, r = x[n].astype(np.float64), references[k].astype(np.float64)
        inner, inner_r = (np.stack([s["h"] for s in trace(layer, 0, v)]) for v in (row, r))
        arriving = np.zeros((STEPS, SIZE))
        arriving[-1] = head[target]
        between = multipliers(layer, 1, inner, inner_r, arriving)
        want[n, target] += multipliers(layer, 0, row, r, between) * (row - r) / K
    np.testing.assert_allclose(got, want, atol=PARITY_32 * np.abs(want).max(), rtol=0)
