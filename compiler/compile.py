"""From an ONNX model to one graph with its explanation: the whole story."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from compiler.artefact.comparisons import Compared, Comparisons, demand_alike, names_given
from compiler.artefact.compiled import Compiled
from compiler.artefact.decision.drift import with_classes
from compiler.artefact.decision.profile import decided, hold
from compiler.artefact.describe import describe
from compiler.artefact.finish import finish
from compiler.artefact.open_length import check_span
from compiler.checks.check import check
from compiler.checks.open_probes import check_open
from compiler.combine.combine import combine
from compiler.combine.one_row import with_batch
from compiler.conversion.convert import Converted, convert, example_of, is_fitted
from compiler.conversion.files import is_fitted_file, read_fitted
from compiler.deployment import HERE, Deployment
from compiler.errors import (
    CheckFailedError,
    InvalidOptionError,
    InvalidReferencesError,
    UnsupportedModelError,
)
from compiler.graph.variants import Variants
from compiler.lowering import Lowered, lower, plain_for
from compiler.lowering.lengths import Size, span_of
from compiler.manifest import Manifest
from compiler.memory.fit import Combined, Progress, fit
from compiler.methods import Auto, Method
from compiler.profile import DecisionProfile, as_profile
from compiler.references.reference_set import OpenReferences
from compiler.runtime.kernels import found, kernels_of
from compiler.runtime.session import Held
from compiler.selection.automatic import ways_of
from compiler.selection.labelled import FeatureNames
from compiler.selection.leaf_references import Referenced, prepare_references, shapes_of
from compiler.selection.path import Concepts, Layers
from compiler.selection.players import Groups
from compiler.selection.select import Question, Selection, select
from compiler.selection.targets import Targets


def compile_model(
    model: str | Path | onnx.ModelProto | Converted | Any,
    method: Method,
    *,
    output: str | None = None,
    logits: bool = False,
    targets: Targets = None,
    inputs: Sequence[str] | None = None,
    feature_names: FeatureNames | None = None,
    groups: Groups | None = None,
    sizes: Mapping[str, Size] | None = None,
    layers: Layers = (),
    concepts: Concepts | None = None,
    custom_ops: Sequence[str | Path] = (),
    decision: DecisionProfile | Mapping[str, Any] | str | Path | None = None,
    comparisons: Comparisons | None = None,
    deployment: Deployment = HERE,
    progress: Progress | None = None,
    allow_parity: float | None = None,
) -> Compiled:
    """Compiles a model and one of its explanations into a single ONNX graph.

    Args:
        model: a path, or a model in memory. Axis 0 of its inputs is the batch. A fitted model of another
            library (or the file in which XGBoost, LightGBM or CatBoost saved one) is converted, and how far
            the ONNX model is from it on the references is printed first; see `convert`.
        method: how to explain, `DeepShap(references)` for instance; `Auto(references)` takes what is exact
            for the model.
        output: the tensor to explain, an inner one too; by default the first float output.
        logits: explain the tensor of which that one is the Sigmoid, Softmax or LogSoftmax.
        targets: flat indices into the output's row, contrasts of two ("1-0": how much more of element 1
            than of 0), "all", or "predicted" (each row's argmax). The default is the only element of a
            one-element output, class 1 of two (an output [N, 2]), else "predicted".
        inputs: the tensors to attribute to, inner ones and integer ids too; by default every float input, or
            the ids that are looked up in the largest table where there is none.
        feature_names: names of the features of one row, or of each explained input's; by default those of the
            columns, where references (or a method's bounds) are a table such as a DataFrame. Its columns are
            matched with them by name.
        groups: names of features by the name of their group ("job*": all that begin so): then
            `group_attributions` [N, T, P] are those of the manifest's `players`, and inputs with a feature in
            a group have no attributions of their own. Features of such inputs in no group are players too.
        sizes: lengths that the model leaves open (`{"seq": 128}`), where the references do not say them; one
            may stay open between two (`{"seq": (1, 128)}`) where no references are given.
        layers: tensors on the way whose attributions the graph answers too, as `<tensor>_attributions`
            [N, T, …]: names, or "all" for every layer and the explained output.
        concepts: channels of one tensor on the way: the attribution of each, and what the inputs contribute
            to the most relevant ones.
        custom_ops: libraries of kernels that ONNX Runtime loads for operators of the model's own; they are
            code, and travel with the entries.
        decision: a decision profile, or its file: the rules by which answers become decisions with reasons.
            It says which output to explain and which features are groups.
        comparisons: other references by which the same model is explained too, so that it can be told which
            reasons stay; the compile takes as many times as long.
        deployment: for what machine: threads, memory budget, storage of references, one entry or two.
        progress: called as `progress(stage, done, total)`, for a bar.
        allow_parity: of a fitted model, as for `convert`.

    Returns:
        The combined model with its manifest, checked but not written.

    Raises:
        InvalidModelError: no ONNX model, damaged, or of an unknown opset.
        UnsupportedModelError: operators without a rule (every one is listed), or rows that mix.
        InvalidReferencesError: references that do not fit the model.
        InvalidOptionError: an output, target, input, layer or feature name that does not exist, no logits,
            groups that overlap, or comparisons that make no sense.
        InvalidProfileError: a decision profile that does not fit the model; it names every fault.
        CheckFailedError: the graph did not reproduce the model, or its attributions do not add up; or the
            ONNX model of a fitted one answers otherwise.
    """
    libraries = found(custom_ops)
    if comparisons is not None:
        comparisons.check(method, deployment, decides=decision is not None)
    model = _converted(model, method, allow_parity)
    if isinstance(model, Converted):
        print(model.report)
        method, names = model.asked_of(method)
        feature_names = names if feature_names is None else feature_names
    with kernels_of(libraries):
        question = Question(output, logits, targets, inputs, feature_names, layers, concepts, groups)
        given = model.model if isinstance(model, Converted) else model
        held = None
        if decision is not None:
            where = str(decision) if isinstance(decision, str | Path) else "decision"
            lowered = _lowered(given, method, sizes or {})
            held = hold(as_profile(decision), lowered, method, question, where)
            method, question = held.method, held.question
        graph, manifest, plain, sample = _compiled(
            given,
            method,
            question,
            sizes or {},
            libraries,
            deployment,
            progress or _silent,
        )
    if isinstance(model, Converted):
        manifest = model.noted(manifest)
    compiled = Compiled(graph, manifest, plain, sample, libraries)
    if held is None:
        return compiled
    compiled = with_classes(decided(held, compiled), method)
    if comparisons is not None:

        def of(other: Method, tell: Progress) -> _Story:
            other = model.asked_of(other)[0] if isinstance(model, Converted) else other
            asked = replace(question, feature_names=names_given(manifest))
            return _compiled(given, held.alike(other), asked, sizes or {}, libraries, deployment, tell)

        with kernels_of(libraries):
            compiled.comparisons = _compared(manifest, method, comparisons, of, progress or _silent)
    return compiled


def _converted(model: Any, method: Method, allow_parity: float | None) -> Any:
    """A fitted model, or one that a library saved, as ONNX; what is ONNX as it is."""
    if isinstance(model, str | Path) and is_fitted_file(Path(model)):
        model = read_fitted(Path(model))
    if is_fitted(model):
        return convert(model, example_of(method), allow_parity=allow_parity)
    if allow_parity is not None:
        raise InvalidOptionError(
            "--allow-parity is of fitted models, which are converted: this one is ONNX already, and compared "
            "with nothing."
        )
    return model


def _lowered(model: str | Path | onnx.ModelProto, method: Method, sizes: Mapping[str, Size]) -> Lowered:
    """The model before anything is chosen in it."""
    fixed, _ = span_of(sizes)
    return with_batch(lower(model, fixed, shapes_of(method.reference_set)))


_Story = tuple[Held, Manifest, onnx.ModelProto, Mapping[str, np.ndarray]]


def _compiled(
    model: str | Path | onnx.ModelProto,
    method: Method,
    question: Question,
    sizes: Mapping[str, Size],
    libraries: Sequence[Path],
    deployment: Deployment,
    tell: Progress,
) -> _Story:
    """The story."""
    if isinstance(method, Auto):
        return _automatic(model, method, question, sizes, libraries, deployment, tell)
    tell("loading and lowering", 0, 1)
    if isinstance(method.reference_set, OpenReferences):
        check_open(method, deployment)
    fixed, span = span_of(sizes)
    if span is not None:
        check_span(span, method, deployment, grouped=bool(question.groups))
    variants = Variants(deployment)

    def made(sizes: Mapping[str, int], tell: Progress) -> tuple[Selection, Referenced, Combined]:
        lowered = with_batch(lower(model, sizes, shapes_of(method.reference_set)))
        selection = select(lowered, method, question)
        referenced = prepare_references(selection)
        plan = combine(selection.lowered, selection.path, selection.method, referenced.set, variants, tell)
        return selection, referenced, fit(plan, deployment, tell)

    def at(sizes: Mapping[str, int]) -> ir.Model:
        return made({**fixed, **sizes}, _silent)[2].model

    selection, referenced, combined = made(fixed, tell)
    graph = finish(selection.lowered, combined, deployment, span, at)
    del combined  # its constants are in `graph` now
    tell("checking against the original", 0, 1)
    checked = check(selection, referenced, graph)
    plain, notes = plain_for(deployment.provider, selection.lowered)
    manifest = describe(selection, referenced.set, graph, checked, variants, notes, libraries)
    return graph.served, manifest, plain, checked.sample


def _compared(
    own: Manifest,
    method: Method,
    comparisons: Comparisons,
    of: Callable[[Method, Progress], _Story],
    tell: Progress,
) -> tuple[Compared, ...]:
    """The same model by other references."""
    asked, found = list(comparisons.methods(method)), list[Compared]()
    for i, (name, kind, other) in enumerate(asked, start=1):
        where = f"{name} ({i} of {len(asked)})"

        def told(stage: str, done: int, total: int, where: str = where) -> None:
            tell(f"{where}: {stage}", done, total)

        graph, manifest, _, sample = of(other, told)
        demand_alike(name, own, manifest)
        found.append(Compared(name, kind, graph, manifest, sample))
    return tuple(found)


def _automatic(
    model: str | Path | onnx.ModelProto,
    asked: Auto,
    question: Question,
    sizes: Mapping[str, Size],
    libraries: Sequence[Path],
    deployment: Deployment,
    tell: Progress,
) -> _Story:
    """By the first method of those that fit of which a graph can be made; a warning says which, and why."""
    tell("choosing a method", 0, 1)
    lowered = _lowered(model, asked, sizes)
    ways, declined = ways_of(lowered, asked, question), ""
    for way in ways:
        try:
            story = _compiled(model, way.method, question, sizes, libraries, deployment, tell)
        except (UnsupportedModelError, InvalidOptionError, InvalidReferencesError, CheckFailedError) as error:
            if way is ways[-1]:
                raise
            declined += f"; {way.method.name} was tried before: {error}"
            continue
        graph, manifest, plain, sample = story
        warnings = (f"auto takes {way.why}{declined}", *manifest.warnings)
        return graph, manifest.model_copy(update={"warnings": warnings}), plain, sample
    raise AssertionError("no way, and no error that says so")


def _silent(*_: object) -> None:
    """No progress is shown."""
