"""From an ONNX model to one graph with its explanation: the whole story."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from rationale.artifact.checks.check import check
from rationale.artifact.checks.probes import check_open
from rationale.artifact.comparisons import Compared
from rationale.artifact.compiled import Compiled
from rationale.artifact.describe import describe
from rationale.artifact.finish import finish
from rationale.artifact.open_length import check_span
from rationale.conversion.convert import Converted, convert, example_of
from rationale.conversion.files import is_fitted_file, read_fitted
from rationale.conversion.parity import warnings_of
from rationale.errors import (
    CheckFailedError,
    InvalidOptionError,
    InvalidReferencesError,
    UnsupportedModelError,
)
from rationale.graph.memory.fit import Combined, fit
from rationale.graph.runtime.kernels import found
from rationale.graph.runtime.session import kernels_of
from rationale.graph.variants import Variants
from rationale.lowering import Lowered, lower, plain_for
from rationale.lowering.inference import Span, span_of
from rationale.methods.engine import Method, MethodChoice, combine, request_of
from rationale.methods.environment import with_batch
from rationale.methods.references import prepare_references, shapes_of
from rationale.methods.target import with_element
from rationale.profiles.comparisons import Comparisons, demand_alike
from rationale.profiles.fitting import FittedProfile, apply_profile
from rationale.references.reference_set import OpenReferences
from rationale.references.represented import StandsFor
from rationale.schema.machine import HERE, Deployment
from rationale.schema.manifest import LayerRule, Parity
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
            library (or the file in which XGBoost, LightGBM or CatBoost saved one) is converted; how far the
            ONNX model is from it on the references is in the manifest. See `convert`.
        method: how to explain, `DeepShap(references)` for instance; `Auto(references)` takes what is exact
            for the model.
        output: the tensor to explain, an inner one too; by default the first float output. An element of its
            row may be named too, as in a profile: "probabilities[1]".
        logits: explain the tensor of which that one is the Sigmoid, Softmax or LogSoftmax.
        targets: flat indices into the output's row, contrasts of two ("1-0": how much more of element 1
            than of 0), "all", or "predicted" (each row's argmax). The default is the only element of a
            one-element output, all of a regressor's, class 1 of two (an output [N, 2]), else "predicted".
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
    """Compile as `compile_model` does, what a request asks for.

    Args:
        method: the request's, with its references.
        stands_for: what the references were drawn from, where their file says it.
        parity: how far an ONNX model is from the fitted model, if it was converted earlier.
    """
    progress = progress or silent
    libraries = () if request.custom_ops == () else found(request.custom_ops)
    if comparisons is not None:
        comparisons.check(method, request.deployment, decides=decision is not None)
    rules = None if decision is None else as_profile(decision)
    converted = _converted(model, method, request.allow_parity, rules)
    if converted is not None:
        method, names = converted.columns_of(method)
        names = names if request.features is None else request.features
        request = request.model_copy(update={"features": names})
    given: Any = converted.model if converted else model
    subject = Subject(given, method, request, libraries)
    with kernels_of(libraries):
        subject.check(method)
        progress("loading and lowering", 0, 1)
        request = with_element(request, subject.lowered)
        profile = None
        if rules is not None:
            where = str(decision) if isinstance(decision, str | Path) else "decision"
            profile = apply_profile(rules, subject.lowered, method, request, where)
            method, request = profile.method, profile.request
        around = Circumstances(profile, converted, stands_for, converted.parity if converted else parity)
        compiled = explain(subject, method, request, progress, around)
        if comparisons is None:
            return compiled
        return replace(compiled, comparisons=_compared(subject, around, compiled, comparisons, progress))


@dataclass(frozen=True)
class Subject:
    """A model as all explanations of one compile share it."""

    model: ModelLike
    method: Method
    request: CompileRequest
    libraries: Sequence[Path]

    @cached_property
    def lowered(self) -> Lowered:
        """The model before anything is chosen in it; lowered once."""
        return self.at({})

    def at(self, sizes: Mapping[str, int]) -> Lowered:
        """Return it with more lengths fixed than the request fixes."""
        fixed, _ = span_of(self.request.sizes)
        return with_batch(lower(self.model, {**fixed, **sizes}, shapes_of(self.method.reference_set)))

    @property
    def span(self) -> Span | None:
        """Lengths that stay open."""
        return span_of(self.request.sizes)[1]

    def check(self, method: Method) -> None:
        """Raise InvalidOptionError for what a method does not go together with."""
        deployment = self.request.deployment
        if isinstance(method.reference_set, OpenReferences):
            check_open(method, deployment)
        if self.span is not None:
            check_span(self.span, method, deployment, grouped=bool(self.request.groups))


@dataclass(frozen=True)
class Circumstances:
    """What is known of an explanation besides its request; each may be nothing.

    Attributes:
        profile: what it decides by.
        converted: the fitted model that the ONNX model was made of.
        stands_for: what its references were drawn from.
        parity: with the fitted model, if it was converted here or before.
    """

    profile: FittedProfile | None = None
    converted: Converted | None = None
    stands_for: StandsFor | None = None
    parity: Parity | None = None

    def completed(self, compiled: Compiled) -> Compiled:
        """Return an explanation that holds them."""
        if self.converted is not None:
            compiled = replace(compiled, conversion=self.converted.report)
        if self.profile is not None:
            compiled = self.profile.embedded(compiled)
        return (
            compiled
            if self.stands_for is None
            else compiled.warned(self.stands_for.warnings(compiled.manifest))
        )


_NONE = Circumstances()


def explain(
    subject: Subject,
    method: Method,
    request: CompileRequest,
    progress: Progress,
    around: Circumstances = _NONE,
) -> Compiled:
    """Compile with the first method of those to be tried of which a graph can be made."""
    choices, declined = method.engine.choices(subject.lowered, method, request), ""
    for choice in choices:
        try:
            return _explained(subject, choice, declined, request, progress, around)
        except (UnsupportedModelError, InvalidOptionError, InvalidReferencesError, CheckFailedError) as error:
            if choice is choices[-1]:
                raise
            declined += f"; {choice.method.name} was tried before: {error}"
    raise AssertionError("no method, and no error that says so")


def _explained(
    subject: Subject,
    choice: MethodChoice,
    declined: str,
    request: CompileRequest,
    progress: Progress,
    around: Circumstances,
) -> Compiled:
    """Run all stages for one method."""
    subject.check(choice.method)
    deployment, variants = request.deployment, Variants(request.deployment)
    if choice.why:
        own = request_of(choice.method)
        request = request.model_copy(update={"method": own.method, "options": own.options})

    def combined(lowered: Lowered, progress: Progress) -> tuple[Any, Any, Combined, Sequence[LayerRule]]:
        lowered = around.profile.scored(lowered) if around.profile else lowered
        selection = choice.method.engine.select(lowered, choice.method, request)
        referenced = prepare_references(selection)
        plan = combine(selection, referenced.set, variants, progress)
        return selection, referenced, fit(plan, deployment, progress), plan.rules

    def at(sizes: Mapping[str, int]) -> ir.Model:
        return combined(subject.at(sizes), silent)[2].model

    selection, referenced, made, rules = combined(subject.lowered, progress)
    graph = finish(selection.lowered, made, deployment, subject.span, at)
    del made  # its constants are in `graph` now
    progress("checking against the original", 0, 1)
    checked = check(selection, referenced, graph, around.converted.ask if around.converted else None)
    plain, notes = plain_for(deployment.provider, selection.lowered)
    why = (f"auto takes {choice.why}{declined}",) * bool(choice.why)
    manifest = describe(
        selection,
        request,
        referenced,
        graph,
        checked,
        variants,
        rules,
        notes=notes,
        first=(*(warnings_of(around.parity) if around.parity else ()), *(() if choice.is_exact else why)),
        libraries=subject.libraries,
        parity=around.parity,
    )
    if choice.is_exact:
        manifest = manifest.model_copy(update={"notes": (*why, *manifest.notes)})
    compiled = Compiled(
        graph.served, manifest, plain, checked.sample, tuple(subject.libraries), probes=checked.probes
    )
    return around.completed(compiled)


def _compared(
    subject: Subject,
    around: Circumstances,
    own: Compiled,
    comparisons: Comparisons,
    progress: Progress,
) -> tuple[Compared, ...]:
    """Compile the same model by other references."""
    profile = around.profile
    assert profile is not None
    request = profile.request.model_copy(update={"features": own.manifest.given_names})
    others, compared = list(comparisons.methods(profile.method)), list[Compared]()
    for i, (name, kind, other) in enumerate(others, start=1):
        where = f"{name} ({i} of {len(others)})"

        def of_this(stage: str, done: int, total: int, where: str = where) -> None:
            progress(f"{where}: {stage}", done, total)

        compiled = explain(subject, profile.alike(other), request, of_this)
        demand_alike(name, own.manifest, compiled.manifest)
        compared.append(
            Compared(name, kind, compiled.graph, compiled.manifest, compiled.sample, compiled.probes)
        )
    return tuple(compared)


def _converted(
    model: Any, method: Method, allow_parity: float | None, profile: DecisionProfile | None
) -> Converted | None:
    """Convert a fitted model, or one that a library saved; None for what is ONNX."""
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
            "--allow-parity is of fitted models, which are converted: this one is ONNX already, and compared "
            "with nothing."
        )
    return None
