"""The completeness gaps of integrated and expected gradients, by number of points and of draws.

`python -m tests.peers.gradients.points` prints the figures of docs/methods.
"""

from collections.abc import Callable

import numpy as np

from rationale import ExpectedGradients, IntegratedGradients, compile_model
from rationale.methods.engine import Method
from tests.peers.networks import case, exported

NETWORKS = {"tanh_3": "tanh perceptron", "relu_3": "ReLU perceptron", "resnet_like": "small ResNet"}
STEPS, SAMPLES = (10, 50, 200), (200, 2000)


def gap(name: str, method: Method) -> float:
    """The largest completeness gap over the largest explained − base, of four rows and every target."""
    answer = compile_model(exported(name, "torchscript"), method, targets="all").explain(case(name).x)
    difference = np.abs(answer["explained_value"] - answer["base_value"]).max()
    return float(np.abs(answer["completeness_gap"]).max() / difference)


def table(quantity: str, counts: tuple[int, ...], method: Callable[[str, int], Method]) -> str:
    lines = [f"| {quantity} | " + " | ".join(NETWORKS.values()) + " |", "|---|" + "---|" * len(NETWORKS)]
    for count in counts:
        gaps = (f"{gap(name, method(name, count)):.0e}".replace("e-0", "e-") for name in NETWORKS)
        lines.append(f"| {count} | " + " | ".join(gaps) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table("steps", STEPS, lambda _, steps: IntegratedGradients(steps=steps)), end="\n\n")
    print(table("samples", SAMPLES, lambda name, samples: ExpectedGradients(case(name).references, samples)))
