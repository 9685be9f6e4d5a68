"""The compile of an ONNX model to one graph with its explanation: all stages in one file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from rationale.artifact.checks.check import check
from rationale.artifact.checks.probes import check_open
from rationale.artifact.comparisons import CompiledComparison
from rationale.artifact.compiled import Compiled
from rationale.artifact.describe import describe
from rationale.artifact.finishing.finish import finish
from rationale.artifact.finishing.open_length import check_span
from rationale.conversion.convert import Converted, convert, example_of
from rationale.conversion.files import is_fitted_file, read_fitted
from rationale.conversion.parity import parity_warnings
from rationale.errors import (
    CheckFailedError,
    InvalidOptionError,
    InvalidReferencesError,
    UnsupportedModelError,
)
from rationale.graph.memory.fit import fit
from rationale.graph.runtime.kernels import library_paths
from rationale.graph.runtime.session import kernels_of
from rationale.graph.variants import VariantChoices
from rationale.lowering import Lowered, lower, plain_model_for
from rationale.lowering.inference import Span, span_of
from rationale.methods.engine import Method, MethodChoice, combine, request_of
from rationale.methods.environment import with_batch
from rationale.methods.feature_names import with_frames
from rationale.methods.references import prepare_references, shapes_of
from rationale.methods.target import with_element
from rationale.profiles.comparisons import Comparisons, check_same_method
from rationale.profiles.fitting import FittedProfile, apply_profile
from rationale.references.reference_set import OpenReferences
from rationale.schema.machine import HERE, Deployment
from rationale.schema.manifest import Parity
from rationale.schema.profile import DecisionProfile, as_profile
from rationale.schema.request import (
    CompileRequest,
    Concepts,
    FeatureNames,
    Groups,
    Layers,
    Progress,
    Size,
    Targets,
    silent,
)
from rationale.tables.represented import StandsFor

ModelLike = str | Path | onnx.ModelProto


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
    """Compile a model and one of its explanations into a single ONNX graph.

    Args:
        model: a path, or a model in memory. Axis 0 of its inputs is the batch. A fitted model of another
            library (or the file in which XGBoost, LightGBM or CatBoost saved one) is converted; the manifest
            records the difference between both on the references. See `convert`.
        method: the method, `DeepShap(references)` for instance; `Auto(references)` chooses an exact one for
            the model if there is one.
        output: the tensor to explain, possibly an inner one; by default the first float output. It may be an
            element of its row, as in a profile: "probabilities[1]".
        logits: explain the tensor whose Sigmoid, Softmax or LogSoftmax the output is.
        targets: flat indices into the output's row, contrasts of two ("1-0": element 1 minus element 0),
            "all", or "predicted" (each row's argmax). The default is the only element of a one-element
            output, all of a regressor's, class 1 of two (an output [N, 2]), else "predicted".
        inputs: the tensors that get attributions, possibly inner ones or integer ids; by default every float
            input, or else the ids of the largest table.
        feature_names: names of the features of one row, or of each explained input's; by default those of the
            columns, if references (or a method's bounds) are a table such as a DataFrame. Its columns are
            matched with them by name.
        groups: names of features by group name ("job*": all that begin so): then `group_attributions`
            [N, T, P] are those of the manifest's `players`, and inputs with a grouped feature have no
            attributions of their own. Ungrouped features of such inputs are players too.
        sizes: lengths that the model leaves open (`{"seq": 128}`), if the references do not show them; one
            may stay open between two (`{"seq": (1, 128)}`) if there are no references.
        layers: tensors on the path that are explained too, as `<tensor>_attributions` [N, T, …]: names, or
            "all" for every layer and the explained output.
        concepts: channels of one tensor on the path: the attribution of each, and the inputs' contributions
            to the most relevant ones.
        custom_ops: libraries of kernels that ONNX Runtime loads for the model's custom operators; they are
            code, and travel with the entries.
        decision: a decision profile, or its file: the rules by which answers become decisions with reasons.
            It names the output to explain, and the features that form groups.
        comparisons: other references for the same model, which show whether reasons are stable; the compile
            takes as many times as long.
        deployment: the target machine: threads, memory budget, storage of references, one entry or two.
        progress: called as `progress(stage, done, total)`, for a bar.
        allow_parity: the allowed difference from a fitted model, like that of `convert`.

    Returns:
        The combined model with its manifest, checked but not written.

    Raises:
        InvalidModelError: if this is no ONNX model, or it is damaged or of an unknown opset.
        UnsupportedModelError: if operators have no rule (all are listed), or rows mix.
        InvalidReferencesError: if references do not fit the model.
        InvalidOptionError: if an output, target, input, layer or feature name does not exist, there are no
            logits, groups overlap, or comparisons make no sense.
        InvalidProfileError: if a decision profile does not fit the model; it names every fault.
        CheckFailedError: if the graph does not reproduce the model, its attributions do not add up, or a
            converted model differs from the fitted one.
    """
    request = request_of(
        method,
        output=output,
        logits=logits,
        targets=targets,
        inputs=inputs,
        features=feature_names,
        groups=groups or {},
        sizes=sizes or {},
        layers=layers,
        concepts=concepts,
        custom_ops=custom_ops,
        deployment=deployment,
        allow_parity=allow_parity,
    )
    return compile_request(model, method, request, decision, comparisons, progress)


def compile_request(
    model: ModelLike | Converted | Any,
    method: Method,
    request: CompileRequest,
    decision: DecisionProfile | Mapping[str, Any] | str | Path | None = None,
    comparisons: Comparisons | None = None,
    progress: Progress | None = None,
    stands_for: StandsFor | None = None,
    parity: Parity | None = None,
) -> Compiled:
    """Compile a request like `compile_model`.

    Args:
        method: the request's method, with its references.
        stands_for: the rows from which the references were drawn, if their file names them.
        parity: the difference between the ONNX model and the fitted model, if it was converted earlier.
    """
    progress, method = progress or silent, with_frames(method)
    libraries = () if request.custom_ops == () else library_paths(request.custom_ops)
    if comparisons is not None:
        comparisons.check(method, request.deployment, decides=decision is not None)
    rules = None if decision is None else as_profile(decision)
    converted = _convert_model(model, method, request.allow_parity, rules)
    if converted is not None:
        method, names = converted.columns_of(method)
        names = names if request.features is None else request.features
        request = request.model_copy(update={"features": names})
    context = CompileContext(converted.model if converted else model, method, request, libraries)
    with kernels_of(libraries):
        context.check(method)
        progress("loading and lowering", 0, 1)
        request = with_element(request, context.lowered)
        profile = None
        if rules is not None:
            where = str(decision) if isinstance(decision, str | Path) else "decision"
            profile = apply_profile(rules, context.lowered, method, request, where)
            method, request = profile.method, profile.request
        provenance = Provenance(profile, converted, stands_for, converted.parity if converted else parity)
        compiled = _first_that_compiles(context, method, request, progress, provenance)
        if comparisons is None:
            return compiled
        compared = _compile_comparison(context, provenance, compiled, comparisons, progress)
        return replace(compiled, comparisons=compared)


@dataclass(frozen=True)
class CompileContext:
    """A model, shared by all explanations of one compile."""

    model: Any
    method: Method
    request: CompileRequest
    libraries: Sequence[Path]

    @cached_property
    def lowered(self) -> Lowered:
        """The model before an output is chosen; it is lowered once."""
        return self.lowered_at({})

    def lowered_at(self, sizes: Mapping[str, int]) -> Lowered:
        """Return the lowered model with more fixed lengths than the request has."""
        fixed, _ = span_of(self.request.sizes)
        return with_batch(lower(self.model, {**fixed, **sizes}, shapes_of(self.method.reference_set)))

    @property
    def span(self) -> Span | None:
        """The length that stays open, or None."""
        return span_of(self.request.sizes)[1]

    def check(self, method: Method) -> None:
        """Check that a method fits the request; raise InvalidOptionError if not."""
        deployment = self.request.deployment
        if isinstance(method.reference_set, OpenReferences):
            check_open(method, deployment)
        if self.span is not None:
            check_span(self.span, method, deployment, grouped=bool(self.request.groups))


@dataclass(frozen=True)
class Provenance:
    """The origin of an explanation besides its request; each part is optional.

    Attributes:
        profile: the decision profile, fitted to the model.
        converted: the fitted model that was converted to ONNX.
        stands_for: the rows from which the references were drawn.
        parity: the difference between the fitted model and the ONNX model.
    """

    profile: FittedProfile | None = None
    converted: Converted | None = None
    stands_for: StandsFor | None = None
    parity: Parity | None = None

    def scored(self, lowered: Lowered) -> Lowered:
        """Return the model with the margin that the profile uses, if it needs one."""
        return self.profile.with_margin(lowered) if self.profile else lowered

    def recorded_in(self, compiled: Compiled) -> Compiled:
        """Return the explanation with its provenance."""
        if self.converted is not None:
            compiled = replace(compiled, conversion=self.converted.report)
        if self.profile is not None:
            compiled = self.profile.embed(compiled)
        if self.stands_for is not None:
            compiled = compiled.with_warnings(self.stands_for.warnings(compiled.manifest))
        return compiled


def _first_that_compiles(
    context: CompileContext,
    method: Method,
    request: CompileRequest,
    progress: Progress,
    provenance: Provenance,
) -> Compiled:
    """Compile with the first of a method's choices that gives a graph."""
    choices, declined = method.choices(context.lowered, request), ""
    for choice in choices:
        try:
            return _compile(context, choice, declined, request, progress, provenance)
        except (UnsupportedModelError, InvalidOptionError, InvalidReferencesError, CheckFailedError) as error:
            if choice is choices[-1]:
                raise
            declined += f"; {choice.method.name} was tried before: {error}"
    raise AssertionError("no method, and no error that says so")


def _compile(
    context: CompileContext,
    choice: MethodChoice,
    declined: str,
    request: CompileRequest,
    progress: Progress,
    provenance: Provenance,
) -> Compiled:
    """Run the eight stages for one method."""
    method, deployment, variants = choice.method, request.deployment, VariantChoices(request.deployment)
    context.check(method)
    if choice.why:
        method_request = request_of(method)
        request = request.model_copy(
            update={"method": method_request.method, "options": method_request.options}
        )

    def at_length(sizes: Mapping[str, int]) -> ir.Model:
        """Return the graph for one of the lengths that stay open."""
        selection = method.engine.select(provenance.scored(context.lowered_at(sizes)), method, request)
        plan = combine(selection, prepare_references(selection).set, variants, silent)
        return fit(plan, deployment, silent).model

    lowered = provenance.scored(context.lowered)
    selection = method.engine.select(lowered, method, request)
    referenced = prepare_references(selection)
    plan = combine(selection, referenced.set, variants, progress)
    combined = fit(plan, deployment, progress)
    graph = finish(selection.lowered, combined, deployment, context.span, at_length)
    del combined  # its constants are in `graph` now
    progress("checking against the original", 0, 1)
    ask = provenance.converted.ask if provenance.converted else None
    checked = check(selection, referenced, graph, ask)
    plain, notes = plain_model_for(deployment.provider, selection.lowered)
    why = (f"auto takes {choice.why}{declined}",) * bool(choice.why)
    manifest = describe(
        selection,
        request,
        referenced,
        graph,
        checked,
        variants,
        plan.rules,
        notes=notes,
        first=(
            *(parity_warnings(provenance.parity) if provenance.parity else ()),
            *(() if choice.is_exact else why),
        ),
        libraries=context.libraries,
        parity=provenance.parity,
    )
    if choice.is_exact:
        manifest = manifest.model_copy(update={"notes": (*why, *manifest.notes)})
    compiled = Compiled(
        graph.served, manifest, plain, checked.sample, tuple(context.libraries), probes=checked.probes
    )
    return provenance.recorded_in(compiled)


def _compile_comparison(
    context: CompileContext,
    provenance: Provenance,
    original: Compiled,
    comparisons: Comparisons,
    progress: Progress,
) -> tuple[CompiledComparison, ...]:
    """Compile the same model with other references."""
    profile = provenance.profile
    assert profile is not None
    request = profile.request.model_copy(update={"features": original.manifest.given_names})
    comparison_methods, compared = list(comparisons.methods(profile.method)), list[CompiledComparison]()
    for i, (name, kind, other) in enumerate(comparison_methods, start=1):
        where = f"{name} ({i} of {len(comparison_methods)})"

        def report(stage: str, finished: int, total: int, where: str = where) -> None:
            progress(f"{where}: {stage}", finished, total)

        compiled = _first_that_compiles(context, profile.in_same_space(other), request, report, Provenance())
        check_same_method(name, original.manifest, compiled.manifest)
        compared.append(
            CompiledComparison(
                name, kind, compiled.graph, compiled.manifest, compiled.sample, compiled.probes
            )
        )
    return tuple(compared)


def _convert_model(
    model: Any, method: Method, allow_parity: float | None, profile: DecisionProfile | None
) -> Converted | None:
    """Convert a fitted model, or a file with one; return None for ONNX models."""
    if isinstance(model, Converted) and allow_parity is None:
        return model
    if isinstance(model, str | Path) and is_fitted_file(Path(model)):
        model = read_fitted(Path(model))
    if not isinstance(model, ModelLike | Converted):
        rules = profile.features if profile else {}
        categories = {name: [*rule.categories] for name, rule in rules.items()}
        return convert(model, example_of(method), allow_parity=allow_parity, categories=categories)
    if allow_parity is not None:
        raise InvalidOptionError(
            "--allow-parity works only for fitted models, which the compiler converts. This model is ONNX "
            "already: leave it out."
        )
    return None
