"""A network that peers explain wrongly: their answers are told apart from the right ones."""

from collections.abc import Iterator

import pytest
import torch

from benchmarks.cases import OURS, SHAP, BenchmarkCase
from benchmarks.explanations import CaseSettings, measure
from benchmarks.networks import Encoder
from benchmarks.subjects import NETWORKS, expected_sums, make_subject

SMALL = BenchmarkCase("transformer", (3, 8), 4, 2)


@pytest.fixture(autouse=True, scope="module")
def one_block() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(NETWORKS, "transformer", lambda width: Encoder(width, blocks=1))
        yield


def test_the_references_and_their_weights_matter() -> None:
    subject = make_subject(SMALL)
    with torch.no_grad():
        mean = subject.network(subject.references).mean(0)
        outputs = subject.network(subject.rows)
    assert expected_sums(subject) == pytest.approx(
        (outputs - mean)[[0, 1], outputs.argmax(1)].numpy(), abs=1e-5
    )


def test_shap_adds_up_to_something_else() -> None:
    actual = measure(SMALL, CaseSettings(1, 1, (SHAP,)))
    assert not actual.left_out
    ours, shap = (actual.systems[name] for name in (OURS, SHAP))
    assert max(ours.error, ours.gap) < 1e-4  # in float32
    assert min(shap.error, shap.gap) > 0.1
    assert "LayerNorm" in actual.notes[0]
