"""A decision profile in a compile: its demands, its faults, and its entry in the manifest."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from math import prod
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from rationale.artifact.compiled import Compiled
from rationale.decisions.drift import drift_classes
from rationale.decisions.rows import (
    ENDS,
    ExplainedRow,
    attribution_keys,
    explained_rows,
    score_index,
    score_location,
    sigmoid,
)
from rationale.errors import InvalidOptionError, near
from rationale.lowering import Lowered
from rationale.methods.answers import holds_numbers
from rationale.methods.engine import EngineChoice, Gap, Method, Selection
from rationale.methods.feature_names import features_of, with_named_columns
from rationale.methods.logits import is_probability
from rationale.methods.references import PreparedReferences, prepare_references
from rationale.methods.target import Target, check_shapes, reach_backward
from rationale.profiles.categories import known_categories
from rationale.profiles.faults import ProfiledFeatures, profile_faults, profile_remarks, score_remarks
from rationale.profiles.scores import (
    Margin,
    Scorer,
    bounds_near_ends,
    deciding_margin,
    margin_behind,
    transform_of,
    trees_behind,
)
from rationale.references.reference_set import Baseline, OpenReferences
from rationale.schema.manifest import Classes, EmbeddedProfile
from rationale.schema.profile import DecisionProfile, profile_error
from rationale.schema.request import CompileRequest

MOST_ROWS = 1000  # references to explain: more would not improve deciles
TOLERANCE = 1e-4  # of the output's range
_PROBABILITY = (0.0, 1.0)
_OTHER_METHODS = "choose exactshap or permutationshap"


@dataclass(frozen=True)
class FittedProfile:
    """A profile that fits a model.

    Attributes:
        method, request: the compile's method and request; output, target, groups and space are the profile's.
        output_range: least and largest score.
        transform: the function that turns the scores of trees into it; empty if no trees make it.
        remarks: remarks for the user.
        where: the profile's name in messages.
        margin: the margin that decides scores in space 'output' near 0 and 1, if it is known.
        has_margin: whether the score is the Sigmoid of a margin, so that the profile may have space 'margin'.
    """

    profile: DecisionProfile
    method: Method
    request: CompileRequest
    output_range: tuple[float, float]
    transform: str
    remarks: tuple[str, ...]
    where: str
    margin: Margin | None = None
    has_margin: bool = False

    def with_margin(self, lowered: Lowered) -> Lowered:
        """Return the model with the margin that it decides by."""
        return self.margin.added(lowered) if self.margin else lowered

    def in_same_space(self, other: Method) -> Method:
        """Return another method of the same kind, in the profile's space."""
        return other.in_space(self.profile.space, self.transform)

    def embed(self, compiled: Compiled) -> Compiled:
        """Return the model with the profile in its manifest, and the classes that measure drift.

        Raises:
            InvalidProfileError: if the explained value is neither the score nor its margin.
        """
        profile, manifest, (least, most) = self.profile, compiled.manifest, self.output_range
        content = [manifest.digests.explanation, manifest.feature_names]
        explanation = sha256(json.dumps(content).encode()).hexdigest()  # reasons are by names
        embedded = EmbeddedProfile(
            profile=profile,
            digest=profile.digest,
            output_range=self.output_range,
            tolerance=profile.tolerance or TOLERANCE * (most - least),
            margin=self.margin.name if self.margin else None,
        )
        manifest = manifest.model_copy(
            update={
                "digests": manifest.digests.model_copy(update={"explanation": explanation}),
                "decision": embedded,
                "warnings": (*manifest.warnings, *self.remarks),
            }
        )
        compiled = replace(compiled, manifest=manifest)
        self._check_score(compiled)
        try:
            classes = classes_of_references(compiled, self.method)
        except InvalidOptionError as error:
            warning = f"the drift of decisions will not be measured: {error}"
            update: dict[str, Any] = {"warnings": (*manifest.warnings, warning)}
        else:
            update = {"decision": embedded.model_copy(update={"classes": classes})}
        return replace(compiled, manifest=manifest.model_copy(update=update))

    def _check_score(self, compiled: Compiled) -> None:
        profile, manifest, (least, most) = self.profile, compiled.manifest, self.output_range
        answer, (tensor, index) = compiled.run(compiled.sample), score_location(manifest)
        score, explained = answer[tensor].reshape(-1)[index], answer[manifest.explained_value][0, 0]
        if profile.space == "margin":
            explained = sigmoid(explained)
        if abs(explained - score) <= (TOLERANCE + manifest.measured.rounding) * (most - least):
            return
        raise profile_error(
            self.where,
            [
                f"'{profile.output}' is {score:g} where "
                f"{'the Sigmoid of ' * (profile.space == 'margin')}what {manifest.method.name} explains "
                f"('{manifest.explained_output}') is {explained:g}, so the reasons would explain another "
                f"number: {self._advice(compiled)}"
            ],
        )

    def _advice(self, compiled: Compiled) -> str:
        """Describe how the score becomes the explained value."""
        others = "name another output, or choose another method"
        if self.profile.space == "margin":
            return f"say space: output, {others}"
        if self.has_margin:
            return f"say space: margin, {others}"
        if is_probability(compiled.source, self.profile.tensor):
            return f"{_OTHER_METHODS}, or name another output"
        output = compiled.manifest.explained_output
        return f"use output: {output} with its own threshold, {others}"


def apply_profile(
    profile: DecisionProfile, lowered: Lowered, method: Method, request: CompileRequest, where: str
) -> FittedProfile:
    """Check a profile against its model, and choose output, target, groups and space by it.

    Raises:
        InvalidProfileError: if anything does not fit; the text names all of it.
        InvalidOptionError, InvalidReferencesError, UnsupportedModelError: if inputs, names or references of
            the compile itself do not fit the model.
    """
    explained = _explained(lowered, method, request)
    score, faults = _score(profile, lowered)
    faults = [
        *_method_faults(profile, method, request),
        *_name_faults(explained),
        *_inner_tensor_faults(explained),
        *faults,
    ]
    model_features = explained.model_features()
    faults += profile_faults(profile, model_features)
    output_range, scores, margin, transform = None, None, None, ""
    if score is not None:
        transform = transform_of(lowered, score.tensor)
        faults += _hidden_input_faults(explained, score.tensor)
        scores, margin = _reference_scores(profile, explained, score)
        output_range, more = _range(profile, explained, score, scores)
        (method, request), fault = _with_settings(profile, lowered, method, request, score)
        faults += more + fault
    if faults:
        raise profile_error(where, faults)
    assert output_range is not None
    assert score is not None
    remarks = [*profile_remarks(profile, model_features), *_gap_remarks(profile, method)]
    if margin is None:
        remarks += _end_remarks(profile, lowered, score)
    if scores is not None:
        spread = output_range[1] - output_range[0]
        remarks += score_remarks(profile, scores, explained.weights(len(scores)), spread)
    margin = margin if profile.space == "output" else None  # in the other space it is the explained value
    has_margin = _margin_of(lowered, score) is not None
    return FittedProfile(
        profile, method, request, output_range, transform, (*remarks,), where, margin, has_margin
    )


# -- what is explained, and its features -----------------------------------------------------------------


@dataclass(frozen=True)
class _Explained:
    """The tensors that get attributions, and their features.

    Attributes:
        target: the explained target, of which only the leaves are known.
        features: names by tensor; None if they have none.
    """

    lowered: Lowered
    method: Method
    target: Target
    features: Mapping[str, tuple[str, ...] | None]

    def model_features(self) -> ProfiledFeatures:
        dtypes = {name: self.lowered.specs[name][1] for name in self.features}
        texts = [name for name, dtype in dtypes.items() if dtype == ir.DataType.STRING]
        return ProfiledFeatures(
            [feature for names in self.features.values() for feature in names or ()],
            {feature for name in texts for feature in self.features[name] or ()},
            self.inputs,
            known_categories(self.lowered, self.features),
        )

    @property
    def inputs(self) -> list[str]:
        """Names of the model's inputs."""
        return [str(value.name) for value in self.lowered.model.graph.inputs]

    @cached_property
    def _referenced(self) -> PreparedReferences:
        return prepare_references(Selection(self.lowered, self.target, self.method, None, EngineChoice()))

    def weights(self, count: int) -> np.ndarray:
        """Return weights of `count` references, which sum to 1."""
        weights = self._referenced.set.weights if self._referenced.set else None
        if weights is None or weights.size != count:
            return np.full(count, 1 / count)
        return weights.reshape(-1).astype(np.float64)

    def rows(self) -> dict[str, np.ndarray] | None:
        """Return the references in the model's form; None unless they cover all of its inputs."""
        if isinstance(self.method.reference_set, Baseline | OpenReferences | None):
            return None
        referenced = self._referenced
        arrays = {**referenced.input_rows, **(referenced.set.arrays if referenced.set else {})}
        if not set(self.inputs) <= set(arrays):
            return None
        types = {v.name: v.type.tensor_type.elem_type for v in self.lowered.source.graph.input}
        return {n: arrays[n].astype(onnx.helper.tensor_dtype_to_np_dtype(types[n])) for n in self.inputs}


def _explained(lowered: Lowered, method: Method, request: CompileRequest) -> _Explained:
    target = Target(method.engine.leaves(lowered, method, request.inputs))
    check_shapes(lowered, target.tensors)
    method, names = with_named_columns(method, lowered, target, request.features)
    rows = {name: lowered.specs[name][0][1:] for name in target.inputs}
    return _Explained(lowered, method, target, features_of(target.inputs, rows, names))


def _name_faults(explained: _Explained) -> Iterator[str]:
    unnamed = [name for name, names in explained.features.items() if names is None]
    if unnamed:
        yield (
            f"the features of {unnamed} have no names, and a reason needs one: a decision is for rows of a "
            "table"
        )


def _inner_tensor_faults(explained: _Explained) -> Iterator[str]:
    """Yield a fault for each tensor without values in an instance, so that no reason could name one."""
    if inner := [name for name in explained.target.inputs if name not in explained.inputs]:
        yield f"{inner} are not inputs of the model, but reasons name its features: leave --input out"


def _hidden_input_faults(explained: _Explained, output: str) -> Iterator[str]:
    """Yield a fault for inputs that move the score, and that no attribution would show."""
    ends = explained.target.tensors
    read = reach_backward(explained.lowered.model.graph, output, ends)
    if hidden := [name for name in explained.inputs if name in read and name not in ends]:
        yield (
            f"the inputs {hidden} change the score and get no attributions by {explained.method.name}, so "
            "that a principal reason might be left out: choose exactshap, permutationshap or treeshap"
        )


def _method_faults(profile: DecisionProfile, method: Method, request: CompileRequest) -> Iterator[str]:
    """Yield contradictions of the request to the profile, and reasons why the method can give none."""
    if method.gap is None:
        yield (
            f"attributions by {method.name} do not add up to the score, so they cannot be reasons: choose "
            "deepshap, treeshap, exactshap or permutationshap"
        )
    if isinstance(method.reference_set, OpenReferences):
        yield "a decision's references are baked: leave --open-references out"
    if request.output not in (None, profile.tensor):
        yield f"output is '{profile.output}', and --output '{request.output}' is given: leave that out"
    if request.targets is not None and request.targets != [profile.index]:
        yield f"output is '{profile.output}', and --targets {request.targets} is given: leave that out"
    if request.groups:
        yield "groups are the profile's: leave --group out"
    wants_probability = method.options.get("space") == "probability"
    if request.logits and profile.space == "output":
        yield "space is 'output', and --logits is given: leave that out, or say space: margin"
    if wants_probability and profile.space == "margin":
        yield "space is 'margin', and --space probability is given: leave that out, or say space: output"


def _gap_remarks(profile: DecisionProfile, method: Method) -> Iterator[str]:
    if method.gap is not Gap.ROUNDING:
        yield (
            f"decision: attributions by {method.name} miss the score by {method.gap}; a row that is missed "
            "by more than the tolerance gets no reasons, and so no decision"
        )
    if method.reference_set is None:
        yield (
            f"decision: the policy is '{profile.references.policy}', and {method.name} has no references to "
            "compare applicants with: give some"
        )


# -- the score -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Score:
    """One element of a tensor's row.

    Attributes:
        index: the element's index; None if the profile names none that exists.
        elements: the number of elements in the row.
        is_output: whether the tensor is one of the model's outputs, which an answer holds.
    """

    tensor: str
    index: int | None
    elements: int
    is_output: bool


def _score(profile: DecisionProfile, lowered: Lowered) -> tuple[_Score | None, list[str]]:
    """Return the score, or the faults that exclude one."""
    name, graph = profile.tensor, lowered.model.graph
    tensors = [str(v.name) for node in graph for v in node.outputs]
    outputs = [str(v.name) for v in graph.outputs]
    if name not in tensors:
        hint = near(name, tensors) or f": its outputs are {outputs}"
        return None, [f"output: the model has no tensor '{name}'{hint}"]
    dtype, sizes = _row_type(lowered, name)
    if dtype is not None and not dtype.is_floating_point():
        floats = [
            n for n in outputs if (kind := _row_type(lowered, n)[0]) is None or kind.is_floating_point()
        ]
        return None, [f"output '{name}' holds {dtype.name}, which cannot be a score: the model has {floats}"]
    if sizes is None:
        return None, [f"output '{name}' has rows of no known size: name another tensor"]
    elements = prod(sizes)
    index, faults = score_index(profile.index, elements), list[str]()
    if profile.index is None and (elements > 2 or (elements == 2 and holds_numbers(lowered.source, name))):
        faults.append(
            f"output '{name}' has {elements} elements, and a score is one number: say which, as in "
            f"'{name}[{elements - 1}]'"
        )
    elif index >= elements:
        faults.append(f"output '{profile.output}': the elements of '{name}' are 0 to {elements - 1}")
    return _Score(name, None if faults else index, elements, name in outputs), faults


def _row_type(lowered: Lowered, name: str) -> tuple[ir.DataType | None, tuple[int, ...] | None]:
    """Return type and shape of one row of a tensor: as inferred, as declared, or as trees have them."""
    if name in lowered.specs:
        shape, dtype = lowered.specs[name]
        return dtype, tuple(shape[1:])
    declared = {v.name: v.type.tensor_type for v in lowered.source.graph.output}
    element_type = declared[name].elem_type if name in declared else None
    dims = [d.dim_value for d in declared[name].shape.dim[1:]] if name in declared else [0]
    trees = trees_behind(lowered.source, name)
    sizes = tuple(dims) if all(dims) else (trees.columns,) if trees else None
    return (ir.DataType(element_type) if element_type else None), sizes


def _range(
    profile: DecisionProfile, explained: _Explained, score: _Score, scores: np.ndarray | None
) -> tuple[tuple[float, float] | None, list[str]]:
    """Return the least and largest score, and faults of bounds outside of them."""
    declared = profile.output_range
    is_closed = is_probability(explained.lowered.source, score.tensor)
    if is_closed and declared not in (None, _PROBABILITY):
        return None, [f"output_range is that of '{score.tensor}', a probability, 0 to 1: leave it out"]
    if score.index is None and not is_closed and declared is None:
        return None, []
    referenced = None if scores is None else (float(scores.min()), float(scores.max()))
    between = _PROBABILITY if is_closed else declared or referenced
    if between is None or not between[0] < between[1]:
        fault = "is from a number to a larger one" if declared else "cannot be seen in the references: say it"
        return None, [f"output_range, the least and largest '{profile.output}', {fault}"]
    hint = "" if is_closed or declared else ", as the references show it: if it can be more, say output_range"
    numbers = {"threshold": [profile.threshold], "refer": list(profile.refer or ())}
    return between, [
        f"{key} {', '.join(f'{n:g}' for n in of)} is outside of '{profile.output}', "
        f"{between[0]:g} to {between[1]:g}{hint}"
        for key, of in numbers.items()
        if any(not between[0] <= n <= between[1] for n in of)
    ]


def _reference_scores(
    profile: DecisionProfile, explained: _Explained, score: _Score
) -> tuple[np.ndarray | None, Margin | None]:
    """Return the references' scores [K], and the margin that decides them; None if unknown."""
    rows, lowered = None if score.index is None else explained.rows(), explained.lowered
    if rows is None:
        return None, None
    margin = deciding_margin(lowered, profile, rows)
    return Scorer(lowered, profile, margin)(rows)[1], margin


def _with_settings(
    profile: DecisionProfile, lowered: Lowered, method: Method, request: CompileRequest, score: _Score
) -> tuple[tuple[Method, CompileRequest], list[str]]:
    """Return the method and the request with the profile's settings, and faults that prevent this."""
    groups = {name: list(rule.members) for name, rule in profile.groups.items()}
    request = request.model_copy(update={"output": score.tensor, "groups": groups, "logits": False})
    if score.index is None:
        return (method, request), []
    request = request.model_copy(update={"targets": [score.index]})
    transform, faults = transform_of(lowered, score.tensor), list[str]()
    if profile.space == "margin":
        request, faults = _with_margin(profile, lowered, method, request, score)
    try:
        return (method if faults else method.in_space(profile.space, transform), request), faults
    except InvalidOptionError as error:
        is_other = profile.space == "output" and _margin_of(lowered, score) is not None
        return (method, request), [f"{error}{', or say space: margin' * is_other}"]


def _margin_of(lowered: Lowered, score: _Score) -> Margin | None:
    """Return the margin whose Sigmoid is the score, for space 'margin'; None if there is none."""
    has_score = score.is_output and score.index is not None
    return margin_behind(lowered, score.tensor, score.elements, score.index or 0) if has_score else None


def _with_margin(
    profile: DecisionProfile, lowered: Lowered, method: Method, request: CompileRequest, score: _Score
) -> tuple[CompileRequest, list[str]]:
    """Return the request for the margin whose Sigmoid is the score: two Softmax classes' difference."""
    if not score.is_output:
        return request, [
            f"space 'margin': '{score.tensor}' is not one of the model's outputs, so an answer has no score"
        ]
    margin = _margin_of(lowered, score)
    if margin is None:
        advice = "say space: output"
        try:
            method.in_space("output", transform_of(lowered, score.tensor))
        except InvalidOptionError:
            advice += f", and {_OTHER_METHODS}"
        return request, [
            f"space 'margin': '{profile.output}' is not the output of a Sigmoid or of a Softmax of two "
            f"classes: {advice}"
        ]
    update = {"output": margin.tensor, "targets": [margin.element], "logits": margin.of_trees}
    return request.model_copy(update=update), []


def _end_remarks(profile: DecisionProfile, lowered: Lowered, score: _Score) -> Iterator[str]:
    """Yield a remark on bounds so near 0 or 1 that the model's own probabilities cannot tell their sides."""
    dtype, _ = _row_type(lowered, score.tensor)
    close = bounds_near_ends(profile)
    if profile.space == "margin" or dtype == ir.DataType.DOUBLE or not close:
        return
    if not is_probability(lowered.source, score.tensor):
        return
    has_margin = _margin_of(lowered, score) is not None
    advice = (
        "use space: margin, so that rows are decided by the margin"
        if has_margin
        else "choose a threshold farther away"
    )
    yield (
        f"decision: {', '.join(f'{n:.9g}' for n in close)} is within {ENDS:g} of 0 or 1, where "
        f"'{profile.output}' has steps of 1e-7 in no strict order, so a row may get another decision than "
        f"by the fitted model: {advice}"
    )


# -- the references' own explanations, from which drift is measured -----------------------------------------


def classes_of_references(compiled: Compiled, method: Method) -> dict[str, Classes]:
    """Return the deciles of the references' attributions.

    Raises:
        InvalidOptionError: if the graph cannot explain the references.
    """
    references, weights = method.reference_set, method.reference_weights
    if references is None or isinstance(references, Baseline | OpenReferences):
        raise InvalidOptionError("the entry has no references, so drift cannot be measured")
    manifest, inputs = compiled.manifest, compiled.fit(references)
    count = len(next(iter(inputs.values())))
    chosen = np.linspace(0, count - 1, min(count, MOST_ROWS)).round().astype(int)
    rows: list[ExplainedRow] = []
    for block in np.array_split(chosen, -(-len(chosen) // manifest.measured.max_batch)):
        rows += explained_rows(manifest, compiled.run({name: array[block] for name, array in inputs.items()}))
    chosen_weights = None if weights is None else np.asarray(weights, np.float64)[chosen]
    return drift_classes(rows, chosen_weights, attribution_keys(manifest))
