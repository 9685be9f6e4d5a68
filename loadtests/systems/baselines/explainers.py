"""SHAP and captum from `benchmarks`, in their fastest form: from rows [N, …] to arrays by name."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from benchmarks.networks import import_torchvision
from benchmarks.peers import EXPLAINERS
from loadtests.load.expected import ATTRIBUTIONS, BASE, NETWORK, OUTPUT, REFERENCES
from loadtests.load.questions import Arrays

Verb = Callable[[np.ndarray], Arrays]


def verbs(name: str, folder: Path) -> tuple[Verb, Verb]:
    """Return a library's functions to predict and explain, with a folder's network and references."""
    import_torchvision()  # the classes of its networks
    network: torch.nn.Module = torch.load(folder / NETWORK, weights_only=False)
    network.eval().requires_grad_(False)  # only those of the input are needed
    references = torch.from_numpy(np.load(folder / REFERENCES))
    attribute = EXPLAINERS[name](network, references)
    with torch.inference_mode():
        base = network(references).mean(0).numpy()

    @torch.inference_mode()
    def predict(x: np.ndarray) -> Arrays:
        return {OUTPUT: network(torch.from_numpy(x)).numpy()}

    def explain(x: np.ndarray) -> Arrays:
        answer = predict(x)
        chosen = answer[OUTPUT].argmax(axis=1)
        values = attribute(torch.from_numpy(x), torch.from_numpy(chosen)).astype(np.float32, copy=False)
        return answer | {ATTRIBUTIONS: values[:, None], BASE: base[chosen][:, None]}

    return predict, explain
