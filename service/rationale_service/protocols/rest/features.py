"""Data for a form of a model: its features by name, unit and range, and its explainers."""

import math
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field

from rationale.decisions.rows import profile_of, score_index
from rationale.errors import InvalidOptionError
from rationale.schema.form import FormField, instance_names, knock_out_fields, model_fields
from rationale.schema.manifest import Manifest, Spread
from rationale.schema.outputs import OUTPUT_KINDS
from rationale.schema.profile import DecisionProfile
from rationale_service.engine.features import form_of
from rationale_service.errors import InvalidInputError, NotExplainableError
from rationale_service.models.references.resolver import takes_own_references
from rationale_service.observability.context import current
from rationale_service.protocols.rest.endpoint import gateway_of
from rationale_service.protocols.rest.problems import problem_responses
from rationale_service.repository.entry import Entry
from rationale_service.repository.registry import ModelRegistry
from rationale_service.security.keys import EXPLAIN, needs

router = APIRouter(prefix="/v1/models", tags=["v1"])
Explainer = Annotated[
    str | None, Query(description="one of the model's explainers; without it the default", max_length=80)
]

Language = Annotated[
    str | None,
    Query(
        description=(
            "language of titles, units and values, one of the decision profile's; by default the first"
        ),
        max_length=80,
    ),
]


class ExplainerItem(BaseModel):
    name: str
    method: str
    digest: str = Field(description="digest in its answers")
    default: bool = Field(description="true: it answers requests that name no explainer")


class InputItem(BaseModel):
    name: str
    datatype: str
    shape: list[int] = Field(description="shape of one row; -1 is any size")
    explained: bool
    features: list[str] | None = Field(
        None, description="names of the features; absent if the input is sent as a whole"
    )
    attributions: str | None = Field(
        None, description="the v2 output with the attributions of its features; absent if groups have them"
    )


class OutputItem(BaseModel):
    name: str
    datatype: str
    shape: list[int] = Field(description="shape of one row")


class Group(BaseModel):
    name: str
    title: str | None = Field(None, description="from the decision profile")
    features: list[str]


class Threshold(BaseModel):
    """The decision profile, as far as a score's decision follows from it."""

    output: str = Field(description="the tensor with the score")
    index: int = Field(description="index of the score in the output's flattened row")
    threshold: float
    refer: list[float] | None = Field(
        None, description="a person decides between these two scores, both included"
    )
    adverse: Literal["above", "below"] = Field(description="the side of the threshold on which it declines")
    space: Literal["output", "margin"] = Field(description="the explained value: the score, or its margin")
    margin: str | None = Field(
        None, description="the v2 output that decides for a score near 0 or 1, in space `output`"
    )
    decision_only_features: list[FormField] = Field(
        description=(
            "features that an instance of `:decide` needs in addition to the model's, for knock-out rules"
        )
    )
    languages: list[str] = Field(description="languages of the decision profile's texts")
    comparisons: list[str] = Field(
        description=(
            "names of the other references with which `:decide` can test which reasons stay (`stability`)"
        )
    )


class ReferencesItem(BaseModel):
    rows: int = Field(description="rows of the set as uploaded")
    digest: str | None = None
    base_value: list[float] | None = Field(
        None, description="mean output over the references, for each target"
    )


class ModelFeatures(BaseModel):
    model: str
    explainer: str | None = Field(description="its name, or null")
    method: str
    digest: str
    explainers: list[ExplainerItem] = Field(description="the model's explainers")
    inputs: list[InputItem]
    features: list[FormField] = Field(description="features that an instance may have, in order")
    groups: list[Group] = Field(description="features that are explained together")
    group_attributions: str | None = Field(
        None, description="the v2 output with the attributions of `players`"
    )
    players: list[str] = Field(description="the groups, and the other features of the same inputs")
    layers: list[str] = Field(description="further tensors inside the model with attributions over v2")
    outputs: list[OutputItem] = Field(description="outputs of a prediction, in order")
    probabilities: list[str] = Field(description="the outputs between 0 and 1")
    output: str = Field(description="the explained tensor")
    output_shape: list[int] = Field(description="shape of one row of it")
    class_names: list[str] = Field(
        description="class names of the elements of that row; empty if the model has none"
    )
    targets: list[int | str] | Literal["predicted"] = Field(
        description=(
            "flat indices into the output's row, contrasts such as '1-0', or the largest element of each row"
        )
    )
    has_base_value: bool
    has_gap: bool = Field(description="true: attributions add up, and answers have a completeness gap")
    other_outputs: dict[str, str] | None = Field(
        None,
        description=("the meaning of further members of this model's explanations; absent if there are none"),
    )
    references: ReferencesItem | None = None
    request_references: int = Field(
        description="number of reference rows that a request may send; 0 if the method accepts none"
    )
    decision: Threshold | None = Field(None, description="present if the model has a decision profile")
    warnings: list[str] = Field(description="warnings of the compile")


@router.get(
    "/{model}/features",
    summary="A model's features, for a form",
    description=(
        "Names, units, ranges and categories, from the decision profile and from the distribution of each "
        "feature over the references. No row of the references is shown. Needs the scope `explain`, "
        "because distributions come from people's data."
    ),
    operation_id="v1_features",
    response_model=ModelFeatures,
    response_model_exclude_none=True,
    responses=problem_responses(404, 422, 503),
)
@needs(EXPLAIN)
async def features(
    request: Request, model: str, explainer: Explainer = None, language: Language = None
) -> ModelFeatures:
    gateway = gateway_of(request)
    plane = gateway.plane
    await plane.loaded(plane.deadline())
    registry = plane.repository
    entry = registry.explainer(model, None, explainer)
    manifest, named, context = entry.manifest, registry.explainer_name(entry), current()
    if manifest is None:
        raise NotExplainableError(f"model '{model}' has no explanation")
    if context is not None:
        context.caller.require_model(manifest.model)
    decider = _decider(registry, manifest)
    profile = None if decider is None else profile_of(decider[1]).profile
    if language is not None:
        profile = _in_language(profile, language)
    compiled = registry.compiled(manifest.model)
    spreads = _spreads(manifest) or _spreads(None if compiled is None else compiled.manifest)
    fields = model_fields(manifest, instance_names(manifest), profile, spreads)
    return ModelFeatures(
        model=manifest.model,
        explainer=named,
        method=manifest.method.name,
        digest=manifest.digests.explanation,
        explainers=_explainers(registry, manifest.model),
        inputs=_inputs(manifest),
        features=fields,
        groups=_groups(manifest, profile),
        group_attributions=manifest.group_attributions,
        players=[player.name for player in manifest.players],
        layers=[layer.tensor.name for layer in manifest.layers],
        outputs=[
            OutputItem(name=spec.name, datatype=spec.datatype, shape=list(spec.shape))
            for spec in manifest.outputs
        ],
        probabilities=list(manifest.probabilities),
        output=manifest.explained_output,
        output_shape=list(manifest.explained_shape),
        class_names=list(manifest.class_names),
        targets=manifest.targets if isinstance(manifest.targets, str) else list(manifest.targets),
        has_base_value=manifest.base_value is not None,
        has_gap=manifest.completeness_gap is not None,
        other_outputs=_other_outputs(manifest) or None,
        references=_references(manifest),
        request_references=gateway.settings.open_references if takes_own_references(manifest) else 0,
        decision=None if decider is None or profile is None else _threshold(*decider, manifest, profile),
        warnings=list(manifest.warnings),
    )


def _other_outputs(manifest: Manifest) -> dict[str, str]:
    kinds = (OUTPUT_KINDS[kind] for kind in manifest.other_outputs)
    return {kind.member or kind.name: kind.meaning for kind in kinds if kind.axes != "NTFF"}


def _spreads(manifest: Manifest | None) -> tuple[Spread, ...]:
    """Return the spreads of the references' values; empty without references."""
    return () if manifest is None or manifest.references is None else manifest.references.spreads


def _explainers(registry: ModelRegistry, model: str) -> list[ExplainerItem]:
    default = registry.default_explainer(registry.entry(model))
    compiled = registry.compiled(model)
    entries = [*registry.explainers.get(model, {}).values(), *(() if compiled is None else (compiled,))]
    return [
        ExplainerItem(
            name=name,
            method=entry.manifest.method.name,
            digest=entry.manifest.digests.explanation,
            default=entry is default,
        )
        for entry in entries
        if entry.manifest is not None and (name := registry.explainer_name(entry)) is not None
    ]


def _inputs(manifest: Manifest) -> list[InputItem]:
    named = manifest.feature_names
    outputs = {item.tensor.name: item.attributions for item in manifest.explained}
    return [
        InputItem(
            name=spec.name,
            datatype=spec.datatype,
            shape=list(spec.shape),
            explained=spec.name in named,
            features=None if named.get(spec.name) is None else list(named[spec.name] or ()),
            attributions=outputs.get(spec.name),
        )
        for spec in manifest.inputs
    ]


def _decider(registry: ModelRegistry, manifest: Manifest) -> tuple[Entry, Manifest] | None:
    """Return the entry that decides for the model, and its manifest, independent of the chosen explainer."""
    entry = registry.compiled(manifest.model)
    decider = None if entry is None else entry.manifest
    return None if entry is None or decider is None or decider.decision is None else (entry, decider)


def _groups(manifest: Manifest, profile: DecisionProfile | None) -> list[Group]:
    titles = {} if profile is None else profile.groups
    return [
        Group(name=name, features=members, title=titles[name].title if name in titles else None)
        for name, members in manifest.groups.items()
    ]


def _references(manifest: Manifest) -> ReferencesItem | None:
    references = manifest.references
    if references is None:
        return None
    base = None if references.base_value is None else list(references.base_value)
    return ReferencesItem(rows=references.given, digest=manifest.digests.references, base_value=base)


def _in_language(profile: DecisionProfile | None, language: str) -> DecisionProfile:
    """Return a profile with its texts in a language. Raises InvalidInputError if it has none in it."""
    if profile is None:
        raise InvalidInputError(f"language '{language}': the model has no decision profile: leave it out")
    try:
        return profile.in_language(language)
    except InvalidOptionError as error:
        raise InvalidInputError(str(error)) from error


def _threshold(entry: Entry, manifest: Manifest, answering: Manifest, profile: DecisionProfile) -> Threshold:
    """Return the threshold of an entry's profile, with the margin output of the `answering` entry.

    Args:
        profile: the entry's, in the language of the texts.
    """
    decided, form = profile_of(manifest), form_of(entry, manifest)
    shapes = {spec.name: spec.shape for spec in manifest.outputs}
    return Threshold(
        output=profile.tensor,
        index=score_index(profile.index, abs(math.prod(shapes.get(profile.tensor, ())))),
        threshold=profile.threshold,
        refer=None if profile.refer is None else list(profile.refer),
        adverse=profile.adverse,
        space=profile.space,
        margin=None if answering.decision is None else answering.decision.margin,
        decision_only_features=knock_out_fields(profile, form.allowed_keys),
        languages=list(decided.profile.languages),
        comparisons=[comparison.name for comparison in decided.comparisons],
    )
