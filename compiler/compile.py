"""From an ONNX model to one graph with its explanation: the whole story."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import onnx
import onnx_ir as ir

from compiler.check import demand, measure, probe_rows
from compiler.combine import combine
from compiler.compiled import Compiled
from compiler.describe import describe
from compiler.errors import InvalidReferencesError
from compiler.lowering import lower
from compiler.methods import Method
from compiler.outputs import attributions_name
from compiler.references import Baseline, prepare, sample_rows
from compiler.scores import prefer_scores
from compiler.targets import Targets, choose_path

Progress = Callable[[str, int, int], None]
FeatureNames = Sequence[str] | Mapping[str, Sequence[str]]


def compile_model(
    model: str | Path | onnx.ModelProto,
    method: Method,
    *,
    output: str | None = None,
    targets: Targets = None,
    inputs: Sequence[str] | None = None,
    feature_names: FeatureNames | None = None,
    progress: Progress | None = None,
) -> Compiled:
    """Compiles a model and one of its explanations into a single ONNX graph.

    Args:
        model: a path, or a model in memory. Axis 0 of its inputs is the batch.
        method: how to explain, `DeepShap(references)` for instance.
        output: the tensor to explain, an inner one too; by default the first float output.
        targets: flat indices into the output's row, "all", or "predicted" (each row's argmax). The default
            is the only element of a one-element output, else "predicted".
        inputs: the inputs to attribute to; by default every float input.
        feature_names: names of the features of one row, or of each explained input's.
        progress: called as `progress(stage, done, total)`, for a bar.

    Returns:
        The combined model with its manifest, checked but not written.

    Raises:
        InvalidModelError: no ONNX model, damaged, or of an unknown opset.
        UnsupportedModelError: operators without a rule (every one is listed), or rows that mix.
        InvalidReferencesError: references that do not fit the model.
        InvalidOptionError: an output, target, input or feature name that does not exist.
        CheckFailedError: the graph did not reproduce the model, or its attributions do not add up.
    """
    tell = progress or (lambda *_: None)
    tell("loading and lowering", 0, 1)
    lowered = lower(model)
    path = choose_path(lowered, output, targets, inputs)
    path, notes = prefer_scores(lowered, path, method, output, targets, inputs)
    rows = {name: (lowered.specs[name][0], lowered.specs[name][1].numpy()) for name in path.inputs}
    given = method.reference_set
    if given is None and method.has_base_value:
        raise InvalidReferencesError(f"{method.name} needs references: an array [K, …] of typical rows.")
    references = None if given is None else prepare(given, method.reference_weights, rows)
    combined = ir.to_proto(combine(lowered, path, method, references, tell))
    tell("checking against the original", 0, 1)
    known = references.arrays if references else {}
    names = [attributions_name(i) for i in path.inputs]
    near = {} if isinstance(given, Baseline) else known  # no row is like a baseline
    measured = measure(lowered.source, combined, names, probe_rows(combined, near))
    warnings = (*lowered.warnings, *notes, *demand(measured, method.gap))
    manifest = describe(lowered, combined, path, method, references, measured, feature_names, warnings)
    return Compiled(combined, manifest, lowered.source, sample_rows(combined, references))
