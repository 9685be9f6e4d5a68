"""The libraries, as their documentation says and as fast as they go. Rows [N, …] in, arrays by name out."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from compiler.bench.networks import import_torchvision, pools_apart, separated
from loadtests.load.expected import ATTRIBUTIONS, BASE, NETWORK, OUTPUT, REFERENCES
from loadtests.load.questions import Arrays

Verb = Callable[[np.ndarray], Arrays]


def torch_predict(network: torch.nn.Module) -> Verb:
    @torch.inference_mode()
    def predict(x: np.ndarray) -> Arrays:
        return {OUTPUT: network(torch.from_numpy(x)).numpy()}

    return predict


def shap_deep(folder: Path) -> tuple[Verb, Verb]:
    """`shap.DeepExplainer`, of the predicted output alone and without its additivity check."""
    import shap

    network, references = _network(folder), _references(folder)
    predict = torch_predict(network)
    explainer = shap.DeepExplainer(separated(network), references)
    base = np.asarray(explainer.expected_value, np.float32)

    def explain(x: np.ndarray) -> Arrays:
        values, chosen = explainer.shap_values(torch.from_numpy(x), ranked_outputs=1, check_additivity=False)
        attributions = np.moveaxis(np.asarray(values, np.float32), -1, 1)
        return predict(x) | {ATTRIBUTIONS: attributions, BASE: base[np.asarray(chosen)]}

    return predict, explain


def captum_deep(folder: Path) -> tuple[Verb, Verb]:
    """`captum.attr.DeepLiftShap` of the predicted output: all rows and references in one pass."""
    from captum.attr import DeepLiftShap

    network, references = _network(folder), _references(folder)
    predict = torch_predict(network)
    explainer = DeepLiftShap(pools_apart(separated(network)))
    with torch.inference_mode():
        base = network(references).mean(0).numpy()

    def explain(x: np.ndarray) -> Arrays:
        answer = predict(x)
        chosen = answer[OUTPUT].argmax(axis=1)
        values = explainer.attribute(torch.from_numpy(x), references, target=torch.from_numpy(chosen))
        return answer | {ATTRIBUTIONS: values.detach().numpy()[:, None], BASE: base[chosen][:, None]}

    return predict, explain


LIBRARIES = {"shap": "shap", "captum": "captum.attr"}
EXPLAINERS = {"shap": shap_deep, "captum": captum_deep}


def _network(folder: Path) -> torch.nn.Module:
    """Without gradients of its weights: only those of the input are needed."""
    import_torchvision()  # the classes of its networks
    network: torch.nn.Module = torch.load(folder / NETWORK, weights_only=False)
    return network.eval().requires_grad_(False)


def _references(folder: Path) -> torch.Tensor:
    return torch.from_numpy(np.load(folder / REFERENCES))
