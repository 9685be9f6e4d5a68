"""Every tolerance of the numeric tests, once, with its reason; the harness of rules brings its own."""

from rationale.testing.harness import COMPLETE_64 as COMPLETE_64
from rationale.testing.harness import FINITE_DIFFERENCE as FINITE_DIFFERENCE
from rationale.testing.harness import NEAR as NEAR
from rationale.testing.harness import PARITY_32 as PARITY_32

# whole transformer blocks in float64, over the largest value (issue: 1e-10).
ATTENTION_64 = 1e-10
# float64 attributions against references that take quotients: 1e-16 over 1e-5, from which on they do.
DUE_64 = 1e-10  # over the largest
# float32 completeness on whole networks, over the largest |explained − base| (issue: 1e-4).
COMPLETE_32 = 1e-4
# the model's own outputs in the combined graph, over the largest (issue: 1e-6); lowering rounds differently.
OUTPUTS_32 = 1e-6
# Whole networks in float32 against float64. A window of a max pool whose two largest values agree to 1e-7 may
# choose the other one: its relevance is unchanged, but a patch of pixels is attributed through another path.
# The float64 graph moves as much when its input moves by 1e-6 (SqueezeNet, light: 0.3% of its largest value).
NETWORK_L2 = 1e-2  # |a − b| over |b|, Euclidean
FLIPPED, FLIPPED_SHARE = 1e-3, 1e-2  # at most 1% of the values differ by more than 1e-3 of the largest
# LRP in float64 over the largest relevance, against matrices: denominators near 0 lose digits (issue: 1e-10).
RELEVANCE_64 = 1e-10
# LRP in float32 over zennit's largest relevance (issue: 1e-5).
ZENNIT_32 = 1e-5
# The same in float64: rounding over denominators near 0 (5e-13 at most, on pre-activated blocks).
ZENNIT_64 = 1e-10
# operators walked as one against one by one, float64, over the largest: a smooth group's slope may be off by
# √ε/2 near a tie.
FUSED_64 = 1e-8
# Random graphs in float64, over the sum of |attributions|: a multiplier over a small x − r has that
# difference's rounding. Of a thousand graphs, the median is 2e-16 and the largest 1e-13.
FUZZED_64 = 1e-10
# The same in float32, in ONNX Runtime against the interpreter: of 800 graphs, the median is 2e-7 and the
# largest 2e-5.
FUZZED_32 = 1e-4
# Their slopes in one direction against central differences, over the largest: 7e-10 at most. Differences that
# change by KINK with the step have a kink in between.
FUZZED_SLOPE, KINK = 1e-7, 1e-8
# ONNX's node tests in float32, over the larger of 1 and the largest answer (issue: 1e-4).
CONFORMANCE_32 = 1e-4
# … and in float64 (issue: 1e-10).
CONFORMANCE_64 = 1e-10
# a slope against central differences along a direction of all features at once: h²·f‴ + ε/h, h = 1e-5.
FINITE_DIFFERENCE_ALONG = 1e-6
# references as an input against the same ones baked in, float32, over the largest: sums in another order.
OPEN_32 = 1e-6
# a network's attributions before and after ONNX Runtime's fusions, float32, over the largest (issue: 1e-4;
# 2.3e-6 at most on BERT, GPT-2 and Llama).
FUSED_32 = 1e-4
# an answer of OpenVINO or the onnx package's evaluator over ONNX Runtime's largest (issue: 1e-4).
ACROSS_RUNTIMES = 1e-4
