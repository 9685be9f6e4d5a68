"""Every rule, by the same tests: complete, equal to finite differences, alive at ties, right in float32."""

import functools

import numpy as np
import pytest

from rationale import DeepShap, compile_model
from rationale.lowering.rewrites.classical import DOMAIN as CLASSICAL
from rationale.lowering.rewrites.engine import rewritten_operators
from rationale.lowering.rewrites.microsoft import DOMAIN
from rationale.rules.rule import all_rules, find_rule
from rationale.testing.engine import Rows
from rationale.testing.harness import Harness, attributions, targets_of
from tests.compiler.samples import SAMPLES, Sample, parameters
from tests.compiler.samples.expected import expected
from tests.references.interpreter import run64
from tests.tolerances import DUE_64, PARITY_32

N, K = 2, 3

SAMPLES_64 = [s for s in SAMPLES if s.float64]

# They are graphs of some dozen operators by definition, each of them held here, which no values say
COMPOSED = ("RoiAlign-max", "RoiAlign-regions vary", "DynamicQuantizeLinear-[3,4]")
PINNED = [s for s in SAMPLES if s.label not in COMPOSED]

any_sample = pytest.mark.parametrize("sample", parameters(SAMPLES))
each_sample = pytest.mark.parametrize("sample", parameters(SAMPLES_64))
each_smooth_sample = pytest.mark.parametrize("sample", parameters(s for s in SAMPLES_64 if s.smooth))


@functools.cache
def harness(sample: Sample) -> Harness:
    """With the graphs that it has made."""
    return Harness(sample, run64)


ROW_BY_ROW = {"Resize-axis 0"}  # what no layout of rows suits, so that it runs in a Scan


def test_every_operator_has_a_sample() -> None:
    sampled = {(s.domain, s.op_type) for s in SAMPLES}
    operators = {(r.domain, r.op_type) for r in all_rules()} | set(rewritten_operators())
    operators = {
        key for key in operators if key[0] not in (DOMAIN, CLASSICAL)
    }  # tests/compiler/lowering has these
    assert operators <= sampled


def demand_equal(sample: Sample, x: Rows, references: Rows, weights: list[float]) -> None:
    """The attributions of N rows are those expected, finite, and add up."""
    held = harness(sample)
    answer = held.answer(x, references, weights)
    want_by_name = expected(sample, held.model, x, references, weights)
    for name, value in attributions(answer).items():
        want = want_by_name[name][:, held.targets]
        near = DUE_64 if sample.float64 else PARITY_32
        np.testing.assert_allclose(value, want, atol=near * max(1.0, np.abs(want).max()), rtol=0)
    held.demand_sum(answer, f"{len(weights)} reference(s)")


@pytest.mark.parametrize(
    "weights",
    [
        pytest.param([1.0], marks=pytest.mark.full, id="one reference"),
        pytest.param([0.5, 0.2, 0.3], id="several"),
    ],
)
@pytest.mark.parametrize("sample", parameters(PINNED))
def test_attributions_are_what_is_due(sample: Sample, weights: list[float]) -> None:
    """Value by value, as the references have it: what is added in every order, or the method's formula."""
    held = harness(sample)
    one = held.one_reference  # of which there is a graph
    references = one if len(weights) == 1 else sample.draw(len(weights), 2, held.dtype)
    demand_equal(sample, sample.draw(N, 1, held.dtype), references, weights)


@each_smooth_sample
def test_the_gradient_is_the_finite_difference(sample: Sample) -> None:
    harness(sample).finite_differences()


EDGES = [  # what an operator's last sample says nothing of
    "AveragePool-same blocks",  # windows that pads move do not tile the plane
    "MaxPool-same blocks",
    "MaxPool-single values",
    "MaxPool-gaps between windows",
    "MaxPool-overlapping",
    "AveragePool-ceil, pads counted",
    "Conv-same, gaps",
    "Conv-1x1, odd strides",
    "ConvTranspose-1-D, with gaps",
    "Col2Im-strided, dilated, padded",
    "Resize-a crop of one length",
    "Resize-a crop of 7 to 31",
    "Clip-at its bounds",
    "Pad-both, negative axes",
    "Slice-two back, not to the first",
]


@pytest.mark.parametrize("label", EDGES)
def test_an_edge_has_the_attributions_that_are_due_in_every_run(label: str) -> None:
    (sample,) = (s for s in SAMPLES if s.label == label)
    held = harness(sample)
    if sample.smooth:
        held.finite_differences()
    demand_equal(sample, sample.draw(N, 1, held.dtype), held.one_reference, [1.0])


@each_smooth_sample
def test_near_the_reference_deepshap_is_the_gradient(sample: Sample) -> None:
    harness(sample).near_the_reference()


@each_sample
def test_at_the_reference_there_is_nothing_to_attribute(sample: Sample) -> None:
    harness(sample).at_the_reference()


@pytest.mark.parametrize("sample", parameters(s for s in PINNED if s.float64))
def test_at_ties_and_zeros_attributions_are_what_is_due(sample: Sample) -> None:
    demand_equal(sample, *harness(sample).tied(), [1.0])


@each_sample
def test_relevance_is_handed_on_whole(sample: Sample) -> None:
    held = harness(sample)
    if find_rule(sample.op_type, sample.domain) is not None and held.conserves():
        held.conservation()


@any_sample
def test_a_row_alone_is_answered_as_in_a_batch(sample: Sample) -> None:
    if sample.label not in ROW_BY_ROW:
        harness(sample).batching()


@any_sample
@pytest.mark.parametrize("method", ["deepshap", pytest.param("gradient", marks=pytest.mark.full)])
def test_the_float32_graph_means_what_its_nodes_mean_in_float64(sample: Sample, method: str) -> None:
    x = sample.draw(N, 9, np.float32)
    if method == "gradient":
        compiled = harness(sample).gradient_in_float32
    else:
        model, references = sample.model(np.float32), sample.draw(K, 8, np.float32)
        compiled = compile_model(model, DeepShap(references), targets=targets_of(model))
    assert ("Scan" in {n.op_type for n in compiled.model.graph.node}) <= (sample.label in ROW_BY_ROW)
    got, want = compiled.explain(x), run64(compiled.model, x)
    size = max(np.abs(value).max() for name, value in want.items() if name != "completeness_gap")
    for name, value in want.items():
        assert np.abs(got[name] - value).max() <= PARITY_32 * size, name
    assert np.abs(got.get("completeness_gap", np.zeros(1))).max() <= PARITY_32 * size
