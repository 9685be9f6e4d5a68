"""What counts as agreement: the tolerances of the peer tests, with their reasons."""

import numpy as np

from tests.tolerances import COMPLETE_32, OUTPUTS_32

ATOL, RTOL = 1e-5, 1e-3
"""Per value, against SHAP and captum. Both sides are float32, and theirs divides a rounded difference by a
rounded difference: one unit whose x and r differ by 1e-3 already costs a relative 1e-4."""

TRUTH, TRUTH_DEEP = 5e-6, 2e-5
"""Against float64, relative to the largest attribution: float32's 6e-8 times the depth and width of what is
summed. The largest error seen is 1.5e-6, and 1.2e-5 on VGG11 (SHAP: 2.1e-5 and 0.8e-5)."""

GRADIENT = 1e-5
"""Against torch.autograd in float64, relative to the largest; nothing is divided there."""

GAP, OUTPUTS = COMPLETE_32, OUTPUTS_32


def assert_agree(ours: np.ndarray, peer: np.ndarray) -> None:
    """Per value, and the peer's largest value is well above the tolerance."""
    assert np.abs(peer).max() > 1000 * ATOL, "nothing to compare: every attribution is near zero"
    np.testing.assert_allclose(ours, peer, atol=ATOL, rtol=RTOL)


def error(values: np.ndarray, truth: np.ndarray) -> float:
    """The largest difference over the largest true value."""
    assert values.shape == truth.shape
    return float(np.abs(values - truth).max() / np.abs(truth).max())
