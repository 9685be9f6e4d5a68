"""SHAP's explainers on a sample of a portfolio, beside `rationale.explain_batches` on the same rows.

    python -m benchmarks.shap_sample [credit trees] [--rows 200] [--seconds 20]

The models are those of benchmarks.portfolio: of the network DeepExplainer (on the same weights in torch) and
KernelExplainer, of the trees TreeExplainer (interventional, of the probability) and KernelExplainer, all with
the references that the entry has. KernelExplainer draws as many coalitions as it does by itself, and asks
ONNX Runtime. Each has as many of this machine's cores as it uses by itself, and explains the sample again and
again until the seconds are over; one that is slow explains a part of it, and at least a row. Rationale's own
sample is larger: it reads 500 rows at a time.

Rows per second, how many times as many Rationale explains, and how far the first rows' attributions differ
from its own, in parts of the largest: the methods of a pair are the same for Deep- and TreeExplainer only.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module

import numpy as np
import onnx
import pyarrow as pa

from benchmarks.arguments import parser_of, positive
from benchmarks.decisions import CREDIT, SUBJECTS
from benchmarks.portfolio import known_rows
from benchmarks.trees import data, session, trained
from rationale.bench.peers import quietly
from rationale.portfolios.arrow import explain_batches
from rationale.terminal import reporting_errors

Explain = Callable[[np.ndarray], np.ndarray]  # rows to attributions [N, features]
OURS, AT_ONCE = "explain_batches", 10


def credit() -> dict[str, Explain]:
    """SHAP's explainers of the network."""
    import torch

    shap = import_module("shap")
    references = np.loadtxt(CREDIT / "references.csv", delimiter=",", skiprows=1, dtype=np.float32)
    model = onnx.load(CREDIT / "credit.onnx")
    deep = shap.DeepExplainer(_network(model), torch.from_numpy(references))
    options = import_module("onnxruntime").SessionOptions()
    ran = import_module("onnxruntime").InferenceSession(model.SerializeToString(), options)
    kernel = shap.KernelExplainer(
        lambda x: ran.run(["default_probability"], {"applicant": x.astype(np.float32)})[0][:, 0], references
    )
    return {
        "DeepExplainer": lambda x: deep.shap_values(torch.from_numpy(x), check_additivity=False)[..., 0],
        "KernelExplainer": lambda x: kernel.shap_values(x, silent=True),
    }


def _network(model: onnx.ModelProto) -> "object":
    """Return the same network in torch."""
    import torch
    from torch import nn

    known = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    mean, scale = known["mean"], known["scale"]
    pairs = [(np.diag(1 / scale), -mean / scale)]
    count = sum(name.startswith("weight_") for name in known)
    pairs += [(known[f"weight_{i}"], known[f"bias_{i}"]) for i in range(1, count + 1)]
    layers: list[nn.Module] = []
    for i, (weight, bias) in enumerate(pairs):
        layer = nn.Linear(*weight.shape)
        layer.weight.data, layer.bias.data = torch.from_numpy(weight.T.copy()), torch.from_numpy(bias.copy())
        layers += [layer] if i in (0, count) else [layer, nn.ReLU()]
    return nn.Sequential(*layers, nn.Sigmoid()).eval()


def trees() -> dict[str, Explain]:
    """SHAP's explainers of the trees."""
    shap, references = import_module("shap"), data()[2][:1000]
    booster, model = trained("xgboost")
    masker, ran = shap.maskers.Independent(references, max_samples=len(references)), session(model)
    by_trees = shap.TreeExplainer(booster, masker, model_output="probability")
    kernel = shap.KernelExplainer(lambda x: ran(x.astype(np.float32))[1][:, 1], references)
    return {
        "TreeExplainer": lambda x: by_trees.shap_values(x, check_additivity=False),
        "KernelExplainer": lambda x: kernel.shap_values(x, silent=True),
    }


PEERS: dict[str, Callable[[], dict[str, Explain]]] = {"credit": credit, "trees": trees}


def speed_of(explain: Explain, rows: np.ndarray, at_once: int, seconds: float) -> tuple[float, np.ndarray]:
    """Return rows per second, and the attributions of the first rows.

    What is prepared in the first call is not counted, unless that takes longer than the seconds.
    """
    began_s = time.perf_counter()
    first = np.asarray(explain(rows[:at_once]))
    taken_s = time.perf_counter() - began_s
    if taken_s > seconds:
        return len(first) / taken_s, first
    done, began_s = 0, time.perf_counter()
    while done == 0 or time.perf_counter() - began_s < seconds:
        start = done % len(rows)
        done += len(explain(rows[start : start + at_once]))
    return done / (time.perf_counter() - began_s), first


def measured(name: str, count: int, seconds: float) -> Iterator[str]:
    """Yield a line for each system."""
    with quietly():
        compiled, instances = SUBJECTS[name]()
        peers = PEERS[name]()
    names, known = list(instances[0]), known_rows(instances)
    rows = known[:count]

    def ours(x: np.ndarray) -> np.ndarray:
        table = pa.table(dict(zip(names, x.T, strict=True)))
        found = pa.Table.from_batches(explain_batches(compiled, table)).select(names)
        return np.stack([column.to_numpy() for column in found.columns], axis=1)

    own, due = speed_of(ours, known, len(known), seconds)
    yield f"{name:10}{OURS:18}{own:12,.0f}"
    for peer, explain in peers.items():
        at_once = 1 if peer == "KernelExplainer" else AT_ONCE
        with quietly():
            speed, found = speed_of(explain, rows, at_once, seconds)
        differs = np.abs(found - due[: len(found)]).max() / np.abs(due).max()
        yield f"{name:10}{peer:18}{speed:12,.3g}{own / speed:12,.0f}{differs:12.1e}"


def main(given: Sequence[str] | None = None) -> None:
    """Prints a line for each model and system."""
    parser = parser_of(__doc__, SUBJECTS, many=True)
    parser.add_argument("--rows", type=positive, default=200, help="of the sample (200)")
    parser.add_argument("--seconds", type=positive, default=20, help="for each system (20)")
    asked = parser.parse_args(given)
    with reporting_errors():
        print(f"{'':28}{'rows/s':>12}{'times':>12}{'differs':>12}")
        for name in asked.models or SUBJECTS:
            for line in measured(name, asked.rows, asked.seconds):
                print(line, flush=True)


if __name__ == "__main__":
    main()
