"""A network that peers explain wrongly: their answers are told apart from the right ones."""

import pytest
import torch

from rationale.bench.cases import OURS, SHAP, Case
from rationale.bench.measure import _errors, _truth
from rationale.bench.networks import Encoder
from rationale.bench.peers import misses
from rationale.bench.subjects import NETWORKS, Subject, compile_ours, due, make_subject, ready


@pytest.fixture(scope="module")
def subject() -> Subject:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(NETWORKS, "transformer", lambda width: Encoder(width, blocks=1))
        return make_subject(Case("transformer", (3, 8), 4, 2), 0)


def test_the_references_and_their_weights_matter(subject: Subject) -> None:
    with torch.no_grad():
        mean = subject.network(subject.references).mean(0)
        outputs = subject.network(subject.rows)
    assert due(subject) == pytest.approx((outputs - mean)[[0, 1], outputs.argmax(1)].numpy(), abs=1e-5)


def test_shap_adds_up_to_something_else(subject: Subject) -> None:
    compiled = compile_ours(subject, 1)
    sums = due(subject)
    truth = _truth(subject)
    errors = {name: _errors(ready(name, subject, compiled, 1), truth, sums) for name in (OURS, SHAP)}
    assert max(errors[OURS]) < 1e-4  # in float32
    assert min(errors[SHAP]) > 0.1
    assert "LayerNorm" in misses(subject.network)[0]
