"""From an ONNX model to one graph with its explanation: the whole story."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx

from compiler.artefact.compiled import Compiled
from compiler.artefact.describe import describe
from compiler.artefact.one_shot import check_gate, check_gate_names, put_behind_gate
from compiler.artefact.open_length import any_length, at_longest, check_span
from compiler.checks.check import demand, measure, storage_error
from compiler.checks.open_probes import check_open, with_open_probes, with_open_sample
from compiler.checks.probes import probe_ids, sample_rows, sound_probes
from compiler.combine.combine import combine
from compiler.combine.one_row import with_batch
from compiler.combine.outputs import attributions_name
from compiler.deployment import HERE, Deployment
from compiler.errors import InvalidReferencesError
from compiler.graph.symbolic_rows import state_shapes
from compiler.graph.variants import Variants
from compiler.lowering import Lowered, lower, narrow, plain_for
from compiler.lowering.lengths import Size, span_of
from compiler.lowering.lengths import told as told_lengths
from compiler.memory.budget import beyond_budget, rows_that_fit
from compiler.memory.fit import Combined
from compiler.methods import Method
from compiler.methods.base import References
from compiler.references.reference_set import Baseline, OpenReferences, ReferenceSet, prepare
from compiler.runtime.session import Runner, hold, interface
from compiler.selection.activity import told
from compiler.selection.labelled import FeatureNames, by_name
from compiler.selection.leaf_references import at_starts
from compiler.selection.path import Path as Walked
from compiler.selection.path import Targets, choose_path
from compiler.selection.scores import prefer_scores

Progress = Callable[[str, int, int], None]


def compile_model(
    model: str | Path | onnx.ModelProto,
    method: Method,
    *,
    output: str | None = None,
    logits: bool = False,
    targets: Targets = None,
    inputs: Sequence[str] | None = None,
    feature_names: FeatureNames | None = None,
    sizes: Mapping[str, Size] | None = None,
    deployment: Deployment = HERE,
    progress: Progress | None = None,
) -> Compiled:
    """Compiles a model and one of its explanations into a single ONNX graph.

    Args:
        model: a path, or a model in memory. Axis 0 of its inputs is the batch.
        method: how to explain, `DeepShap(references)` for instance.
        output: the tensor to explain, an inner one too; by default the first float output.
        logits: explain the tensor of which that one is the Sigmoid, Softmax or LogSoftmax.
        targets: flat indices into the output's row, "all", or "predicted" (each row's argmax). The default
            is the only element of a one-element output, class 1 of two (an output [N, 2]), else "predicted".
        inputs: the tensors to attribute to, inner ones and integer ids too; by default every float input, or
            the ids that are looked up in the largest table where there is none.
        feature_names: names of the features of one row, or of each explained input's; by default those of the
            columns, where references (or a method's bounds) are a table such as a DataFrame. Its columns are
            matched with them by name.
        sizes: lengths that the model leaves open (`{"seq": 128}`), where the references do not say them; one
            may stay open between two (`{"seq": (1, 128)}`) where no references are given.
        deployment: for what machine: threads, memory budget, storage of references, one entry or two.
        progress: called as `progress(stage, done, total)`, for a bar.

    Returns:
        The combined model with its manifest, checked but not written.

    Raises:
        InvalidModelError: no ONNX model, damaged, or of an unknown opset.
        UnsupportedModelError: operators without a rule (every one is listed), or rows that mix.
        InvalidReferencesError: references that do not fit the model.
        InvalidOptionError: an output, target, input or feature name that does not exist, or no logits.
        CheckFailedError: the graph did not reproduce the model, or its attributions do not add up.
    """
    tell = progress or (lambda *_: None)
    tell("loading and lowering", 0, 1)
    given = method.reference_set
    if isinstance(given, OpenReferences):
        check_open(method, deployment)
    fixed, span = span_of(sizes or {})
    if span is not None:
        check_span(span, method, deployment)
    variants = Variants(deployment)

    asked = _Asked(output, logits, targets, inputs, feature_names)

    def make(sizes: Mapping[str, int], tell: Progress) -> _Made:
        return _made(model, method, asked, sizes, variants, tell)

    lowered, path, method, feature_names, notes, references, fed, made = make(fixed, tell)
    if span is not None:
        lowered = replace(lowered, lengths={**lowered.lengths, span.name: (span.least, span.most)})
        any_length(made.model, lambda sizes: make({**fixed, **sizes}, lambda *_: None).made.model, span)
    graph = narrow(made.model, lowered.narrow)
    if span is None:
        state_shapes(graph)
    combined = interface(graph)
    longest = combined if span is None else at_longest(combined, span)
    served = hold(put_behind_gate(lowered, graph) if deployment.one_shot else graph)
    memory, exact = made.memory, made.exact
    del graph, made  # their constants are in `served` now
    tell("checking against the original", 0, 1)
    names = [attributions_name(i) for i in path.inputs]
    near = {} if isinstance(given, Baseline) else _near(lowered, path, references, fed)
    probes = with_open_probes(sound_probes(lowered.source, longest, near), references)
    checked = measure(lowered.source, served, names, probes, rows_that_fit(memory))
    if deployment.one_shot:
        check_gate(served, probes, [v.name for v in lowered.source.graph.output])
    if exact is not None:
        error = storage_error(Runner(narrow(exact, lowered.narrow)), checked, names, probes)
        memory = memory.model_copy(update={"storage_error": error})
    plain, replaced = plain_for(deployment.provider, lowered)
    warnings = (
        *lowered.warnings,
        *told_lengths(lowered.lengths),
        *replaced,
        *path.notes,
        *notes,
        *told(path.stops),
        *(references.warnings if references else ()),
    )
    warnings += (*demand(checked.measured, method.gap, bool(path.stops)), *beyond_budget(memory))
    manifest = describe(lowered, combined, path, method, references, checked, feature_names, warnings)
    made_for = {"one_shot": deployment.one_shot, "memory": memory, "variants": variants.describe()}
    manifest = manifest.model_copy(update=made_for)
    sample = with_open_sample(sample_rows(longest, references, probes), references)
    return Compiled(served, manifest, plain, sample)


class _Asked(NamedTuple):
    """Arguments of `compile_model`: what to explain, and by what."""

    output: str | None
    logits: bool
    targets: Targets
    inputs: Sequence[str] | None
    feature_names: FeatureNames | None


class _Made(NamedTuple):
    """A model on the way to its combined graph."""

    lowered: Lowered
    path: Walked
    method: Method
    feature_names: FeatureNames | None
    notes: tuple[str, ...]
    references: ReferenceSet | None
    fed: dict[str, np.ndarray]
    made: Combined


def _made(
    model: str | Path | onnx.ModelProto,
    method: Method,
    asked: _Asked,
    sizes: Mapping[str, int],
    variants: Variants,
    tell: Progress,
) -> _Made:
    """Lowers a model and walks it."""
    given, (output, logits, targets, inputs, names) = method.reference_set, asked
    lowered = with_batch(lower(model, sizes, _shapes(given)))
    if variants.deployment.one_shot:
        check_gate_names(lowered)
    referenced = given if isinstance(given, Mapping) else ()
    lowered, path = choose_path(lowered, output, targets, inputs, referenced, logits)
    lowered, path, notes = prefer_scores(lowered, path, method, output, targets)
    if given is None and method.has_base_value:
        raise InvalidReferencesError(f"{method.name} needs references: an array [K, …] of typical rows.")
    method, names = by_name(method, lowered, path, names)
    references, fed = _references(lowered, path, method)
    made = combine(lowered, path, method, references, variants, tell)
    return _Made(lowered, path, method, names, tuple(notes), references, fed, made)


def _shapes(given: References | None) -> dict[str | None, tuple[int, ...]]:
    """Of the references, by input; under None for the only one. What has no shape is refused later."""
    if isinstance(given, OpenReferences):
        given = given.examples
    if given is None or isinstance(given, Baseline):
        return {}
    arrays = given if isinstance(given, Mapping) else {None: given}
    found: dict[str | None, tuple[int, ...]] = {}
    for name, array in arrays.items():
        with suppress(ValueError):
            found[name] = np.shape(array)
    return found


def _references(
    lowered: Lowered, path: Walked, method: Method
) -> tuple[ReferenceSet | None, dict[str, np.ndarray]]:
    """Those of the tensors at which the walk ends, and rows of model inputs given for them."""
    if method.reference_set is None:
        return None, {}
    given, fed = at_starts(lowered, path, method.reference_set)
    dtypes = {name: lowered.narrow.edges.get(name, lowered.specs[name][1]) for name in path.tensors}
    rows = {name: (lowered.specs[name][0], dtype.numpy()) for name, dtype in dtypes.items()}
    return prepare(given, method.reference_weights, rows), fed


def _near(
    lowered: Lowered, path: Walked, references: ReferenceSet | None, fed: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Rows of the model's inputs near which it is checked."""
    near = {**fed, **(references.arrays if references else {})}
    ids = {s.name: [o for o in path.starts if o.name == s.name] for s in path.starts if s.places is not None}
    drawn = {n: probe_ids(starts, lowered.specs[n][0][1:], fed.get(n)) for n, starts in ids.items()}
    return {**near, **drawn}
