"""SHAP's and captum's explanations of each row's predicted output."""

import contextlib
import copy
import io
import warnings
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor, nn

from rationale.bench.cases import CAPTUM, SHAP
from rationale.bench.networks import pools_apart, separated

Explain = Callable[..., np.ndarray]


def shap_explainer(network: nn.Module, references: Tensor) -> Explain:
    """`shap.DeepExplainer` of the largest output alone, without its additivity check: rows to [N, …]."""
    with quietly():
        import shap

        explainer = shap.DeepExplainer(separated(copy.deepcopy(network)).to(references.device), references)

    def explain(rows: Tensor, targets: Tensor | None = None) -> np.ndarray:
        del targets  # it looks for the largest itself
        asked = rows.to(references.device)
        with quietly():
            values, _ = explainer.shap_values(asked, ranked_outputs=1, check_additivity=False)
        return np.asarray(values)[..., 0]

    return explain


def captum_explainer(network: nn.Module, references: Tensor) -> Explain:
    """`captum.attr.DeepLiftShap` with each row's predicted output as its target: rows to [N, …].

    Every max pool gets a tensor of its own: beside an activation captum would explain it wrongly.
    """
    with quietly():
        import captum.attr

        model = pools_apart(separated(copy.deepcopy(network))).to(references.device)
        explainer = captum.attr.DeepLiftShap(model)

    def explain(rows: Tensor, targets: Tensor | None = None) -> np.ndarray:
        asked = rows.to(references.device)
        with quietly():
            if targets is None:
                with torch.no_grad():
                    targets = model(asked).argmax(dim=1)
            attributions: Tensor = explainer.attribute(asked, references, target=targets)
        return attributions.detach().cpu().numpy()

    return explain


EXPLAINERS = {SHAP: shap_explainer, CAPTUM: captum_explainer}


def misses(network: nn.Module) -> list[str]:
    """Return what SHAP and captum compute otherwise in this network."""
    found = []
    if any(isinstance(m, nn.SiLU) for m in network.modules()):
        found.append("takes the plain gradient of SiLU, and of products")
    if any(isinstance(m, nn.LayerNorm) for m in network.modules()):
        found.append("takes the plain gradient of GELU, LayerNorm and the products of attention")
    pools = [m for m in network.modules() if isinstance(m, nn.MaxPool2d)]
    if any(_first(m.kernel_size) > _first(m.stride) for m in pools):
        found.append("loses what overlapping windows of a max pool share")
    return found


def _first(value: int | tuple[int, ...]) -> int:
    return value if isinstance(value, int) else value[0]


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Without what peers print and warn about; their answers are compared instead."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
