"""Transformers of the transformers library: complete, unchanged, and each row by itself."""

import numpy as np
import pytest
import torch

from rationale import AttnLrp, DeepShap, compile_model
from tests.models.transformers_models import MODELS, transformer
from tests.tolerances import COMPLETE_32

pytestmark = pytest.mark.full

MARKS = {("BERT", False): (), ("Llama", False): ()}
MARKS |= {("GPT-2", False): pytest.mark.full, ("ViT", False): pytest.mark.full}
UNEXPORTED = {"Swin", "T5 encoder", "XLNet", "Conformer"}  # torch.export fails with a dynamic batch
CASES = [
    pytest.param(name, dynamo, marks=MARKS.get((name, dynamo), pytest.mark.slow))
    for name in MODELS
    for dynamo in (False, True)
    if not (dynamo and name in UNEXPORTED)
]


@pytest.mark.parametrize(("name", "dynamo"), CASES)
def test_transformer(name: str, dynamo: bool) -> None:
    exported = transformer(name, dynamo=dynamo)
    logits = exported.network(*(torch.from_numpy(a) for a in exported.x.values())).detach().numpy()
    targets = [logits[0].size - 5, logits[0].size - 2] if logits.ndim > 2 else [0, 2]
    compiled = compile_model(exported.model, DeepShap(exported.references), targets=targets)
    answer = compiled.explain(exported.x)
    np.testing.assert_allclose(answer["logits"], logits, atol=1e-5 * np.abs(logits).max())
    difference = np.abs(answer["explained_value"] - answer["base_value"]).max()
    assert difference > 0.1 * np.abs(answer["explained_value"]).max(), "a test network must have a signal"
    assert np.abs(answer["completeness_gap"]).max() <= COMPLETE_32 * difference
    first = next(iter(exported.x))
    attributions = answer[f"{first}_attributions"]
    assert attributions.shape == (3, 2, *exported.x[first].shape[1:])
    assert not [output for output in answer if output == "mask_attributions"]
    for i in range(3):
        alone = compiled.explain({n: a[i : i + 1] for n, a in exported.x.items()})[f"{first}_attributions"]
        np.testing.assert_allclose(alone[0], attributions[i], atol=1e-5 * np.abs(attributions).max())


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_relevance(name: str) -> None:
    """AttnLRP starts at the network's own answer, and says what of it is kept."""
    exported = transformer(name, dynamo=False)
    first, logits = next(iter(exported.x)), exported.network(*map(torch.from_numpy, exported.x.values()))
    scores = logits.detach().numpy().reshape(len(logits), -1)
    answer = compile_model(exported.model, AttnLrp(), targets=[scores.shape[1] - 2]).explain(exported.x)
    explained, relevance = answer["explained_value"][:, 0], answer[f"{first}_attributions"].reshape(3, -1)
    np.testing.assert_allclose(explained, scores[:, -2], atol=1e-5 * np.abs(scores).max())
    absorbed = explained - relevance.sum(1, dtype=np.float64)
    near = 1e-5 * np.abs(relevance).sum(1).max()
    np.testing.assert_allclose(answer["completeness_gap"][:, 0], absorbed, atol=near)


def test_a_masked_token_has_no_attribution() -> None:
    """Nothing of it reaches the class token of the explained row."""
    exported = transformer("BERT", dynamo=False)
    answer = compile_model(exported.model, DeepShap(exported.references), targets=[0]).explain(exported.x)
    values = answer["ids_attributions"][1, 0]
    assert np.abs(values[5:]).max() <= 1e-6 * np.abs(values).max()
    assert np.abs(values[:5]).min() > 0


@pytest.mark.parametrize("dynamo", [False, pytest.param(True, marks=pytest.mark.full)])
def test_references_as_a_tokenizer_gives_them(dynamo: bool) -> None:
    """Ids with their mask: it is each row's own, whatever the references' is."""
    exported = transformer("BERT", dynamo=dynamo)
    ids, mask = exported.x
    method = DeepShap({ids: exported.references, mask: np.tril(np.ones_like(exported.references), k=3)})
    got = compile_model(exported.model, method, targets=[1]).explain(exported.x)
    want = compile_model(exported.model, DeepShap({ids: exported.references}), targets=[1]).explain(
        exported.x
    )
    np.testing.assert_array_equal(got["ids_attributions"], want["ids_attributions"])
    assert np.abs(got["completeness_gap"]).max() <= COMPLETE_32 * np.abs(got["explained_value"]).max()
