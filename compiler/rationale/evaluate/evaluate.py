"""`rationale evaluate`: faithfulness of compiled explanations to their models, on the rows of a file."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from onnx.helper import tensor_dtype_to_np_dtype

from rationale.artifact.compiled import Compiled
from rationale.artifact.entry import open_entry
from rationale.artifact.rows import read_inputs, read_table
from rationale.errors import InvalidOptionError, InvalidReferencesError
from rationale.evaluate.explained_model import (
    ExplainedModel,
    GivenReferences,
    Pairs,
    evaluated_pairs,
    feature_owners,
    warmup_rows,
)
from rationale.evaluate.faithfulness import (
    Curve,
    cut_counts,
    deletion_and_insertion,
    random_orders,
)
from rationale.evaluate.randomise import Randomised, randomised_check
from rationale.evaluate.reasons import compare_reasons
from rationale.evaluate.shapley import ShapleyComparison, ShapleySample, compare, rounds_within
from rationale.pictures.numbers import score_text
from rationale.pictures.panels import Bars, Estimate, Panel, element_name, flow, panels, split_attributions
from rationale.references.reference_set import prepare
from rationale.schema.manifest import Attributed, Manifest
from rationale.schema.request import Progress, silent

DRAWN, TOP = 3, 10  # rows to draw, and features per row with a bar of their own
LARGE = 4096  # features from which curves have fewer steps and weights are redrawn once
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class EvaluationSettings:
    """Settings of an evaluation; the report contains them.

    Attributes:
        rows: largest number of rows to evaluate, drawn without replacement.
        orders: number of random orders in the control.
        shapley: True to compute Shapley values from the model and compare attributions with them.
        evaluations: largest number of model answers for an entry's Shapley values.
    """

    rows: int = 100
    seed: int = 0
    orders: int = 10
    shapley: bool = False
    evaluations: int = 50_000_000

    def __post_init__(self) -> None:
        if min(self.rows, self.orders) < 1 or self.seed < 0:
            raise InvalidOptionError("--rows must be 1 or more, and --seed 0 or more.")
        if self.evaluations < 1:
            raise InvalidOptionError(f"--evaluations {self.evaluations}: give a number of 1 or more.")


@dataclass(frozen=True)
class Evaluation:
    """The numbers of one entry.

    `baseline` names in words the values that replace features in the curves. `shapley` is None if not
    requested, and a text if there is a reason to leave it out. `panels` show the first rows.
    """

    name: str
    manifest: Manifest
    rows: int
    targets: int
    features: int
    baseline: str
    deletion: Curve
    insertion: Curve
    randomised: Randomised
    shapley: ShapleyComparison | str | None = None
    panels: tuple[Panel, ...] = ()

    @property
    def method(self) -> str:
        """The method with its options, shortened."""
        return _method(self.manifest)


def _method(manifest: Manifest) -> str:
    options = {k: v for k, v in manifest.method.options.items() if v not in (None, False, [], ())}
    words = [k if v is True else f"{k}={v}" for k, v in options.items()]
    return textwrap.shorten(", ".join([manifest.method.name, *words]), 40, placeholder=" …")


@dataclass(frozen=True)
class _Entry:
    name: str
    compiled: Compiled
    inputs: Arrays
    index: np.ndarray
    references: GivenReferences | None

    @property
    def without_shapley(self) -> str | None:
        """Reason why Shapley values cannot be compared; None if they can."""
        if self.compiled.manifest.base_value is None:
            return "the method compares with no references"
        return None if self.references else "the references are needed: give --references FILE"


@dataclass(frozen=True)
class _SharedState:
    """State that entries share: random orders, and the order and names of features in pictures.

    Keys of `orders`: model, row and explained inputs; of `names`: model, input and its shape.
    """

    controls: dict[object, np.ndarray]
    orders: dict[object, tuple[int, ...]]
    names: Mapping[object, tuple[str, ...]]


def evaluate(
    repository: Path,
    names: Sequence[str],
    file: Path,
    references: Sequence[Path] = (),
    settings: EvaluationSettings | None = None,
    progress: Progress = silent,
) -> list[Evaluation]:
    """Measure each entry on the same rows.

    Args:
        references: files that entries were compiled with, for the randomised-weights check and Shapley
            values; each entry takes the file whose digest is in its manifest.

    Raises:
        RepositoryError: if an entry does not exist or cannot be read.
        InvalidOptionError, InvalidReferencesError: if names, rows or references do not fit.
    """
    options = settings or EvaluationSettings()
    if len(set(names)) < len(names) or not names:
        raise InvalidOptionError(f"entries {list(names)}: give one name or several different ones.")
    compiled = [open_entry(repository, name) for name in names]
    for c in compiled:
        _check_features(c.manifest)
    sets = _match_references(compiled, names, references)
    entries = [
        _Entry(name, c, *_draw_rows(c, file, options), r)
        for name, c, r in zip(names, compiled, sets, strict=True)
    ]
    if options.shapley:
        _check_shapley(entries, options.evaluations)
    shared = _SharedState({}, {}, _names(compiled))
    return [_evaluate_one(e, entries, shared, options, progress) for e in entries]


def _check_shapley(entries: Sequence[_Entry], most: int) -> None:
    """Raise InvalidOptionError early if Shapley values cannot be sampled: the rest takes minutes."""
    reasons = [e.without_shapley for e in entries]
    if all(reasons):
        raise InvalidOptionError(f"--shapley: {'; '.join(dict.fromkeys(filter(None, reasons)))}.")
    for e in entries:
        if e.references and e.without_shapley is None:
            rows = len(next(iter(e.inputs.values())))
            players = int(feature_owners(e.compiled.manifest).max()) + 1
            rounds_within(most, rows, players, len(e.references.shares))


def _evaluate_one(
    entry: _Entry,
    entries: Sequence[_Entry],
    shared: _SharedState,
    settings: EvaluationSettings,
    progress: Progress,
) -> Evaluation:
    def stage(step: str, count: int, total: int) -> None:
        progress(f"{entry.name}: {step}", count, total)

    stage("explaining", 0, 1)
    subject, seed = ExplainedModel(entry.compiled, entry.inputs), settings.seed
    pairs = evaluated_pairs(subject)
    steps, redraws = (25, 1) if subject.features.shape[1] >= LARGE else (100, 5)
    cuts = cut_counts(pairs.attributions.shape[1], steps)
    baseline, baseline_name = _curve_baseline(subject, entry, entries)
    key = _control_key(entry.compiled.manifest, baseline)
    controls = shared.controls
    if key not in controls:
        controls[key] = random_orders(subject, pairs, cuts, baseline, settings.orders, seed, stage)
    deletion, insertion = deletion_and_insertion(subject, pairs, cuts, baseline, controls[key], seed, stage)
    shapley: ShapleyComparison | str | None = None
    sampled: Sequence[ShapleySample] = ()
    if settings.shapley:
        shapley = entry.without_shapley
        if entry.references and shapley is None:
            shapley, sampled = compare(subject, pairs, entry.references, settings.evaluations, seed, stage)
            if entry.compiled.manifest.decision is not None:
                shapley = replace(shapley, reasons=compare_reasons(entry.compiled, entry.inputs, sampled))
    return Evaluation(
        name=entry.name,
        manifest=entry.compiled.manifest,
        rows=len(subject.features),
        targets=pairs.positions.shape[1],
        features=subject.features.shape[1],
        baseline=baseline_name,
        deletion=deletion,
        insertion=insertion,
        randomised=randomised_check(
            entry.compiled, entry.inputs, pairs, entry.references, redraws, seed, stage
        ),
        shapley=shapley,
        panels=tuple(_panels(entry, subject, pairs, sampled, shared)),
    )


def _names(compiled: Sequence[Compiled]) -> dict[object, tuple[str, ...]]:
    """Return feature names by model, input and shape, from the first entry that was given some."""
    names: dict[object, tuple[str, ...]] = {}
    for manifest in (c.manifest for c in compiled):
        for e in manifest.explained:
            if e.given_names is not None:
                names.setdefault((manifest.digests.model, e.tensor.name, e.tensor.shape), e.given_names)
    return names


def _panels(
    entry: _Entry,
    subject: ExplainedModel,
    pairs: Pairs,
    sampled: Sequence[ShapleySample],
    shared: _SharedState,
) -> Iterator[Panel]:
    """Yield panels of the first rows, for the first target of each."""
    manifest, targets = entry.compiled.manifest, pairs.positions.shape[1]
    model = manifest.digests.model
    is_share = manifest.explains_share and manifest.completeness_gap is not None
    for i, row in enumerate(entry.index[:DRAWN]):
        p = i * targets
        targets_listed = manifest.targets
        target = pairs.elements[p] if targets_listed == "predicted" else targets_listed[pairs.positions[i, 0]]
        explained = (
            f"{element_name(manifest, target)}: {score_text(pairs.answers[p], manifest.explains_share)}"
        )
        estimate = Estimate(sampled[i].values[0], sampled[i].errors[0]) if sampled else None
        parts = [
            replace(attributed, explained=_with_names(attributed.explained, shared.names, model))
            for attributed in split_attributions(manifest, pairs.attributions[p], subject.values(i))
        ]
        title = f"{entry.name} ({_method(manifest)}), row {row}, {explained}"
        key = (model, row, *((a.explained.tensor.name, a.explained.of_players) for a in parts))
        for panel in panels(title, parts, TOP, shapley=estimate, order=shared.orders.get(key, ())):
            if isinstance(panel, Bars):
                shared.orders.setdefault(key, panel.order)
                panel = replace(panel, is_share=is_share)
            yield panel
        if manifest.layers:
            answer = entry.compiled.explain({name: a[i : i + 1] for name, a in entry.inputs.items()})
            yield flow(f"{title}: layer by layer", answer, 0, pairs.positions[i, 0])


def _with_names(e: Attributed, names: Mapping[object, tuple[str, ...]], model: str) -> Attributed:
    feature_names = None if e.of_players else names.get((model, e.tensor.name, e.tensor.shape))
    return e if feature_names is None else e.model_copy(update={"feature_names": feature_names})


# -- rows ----------------------------------------------------------------------------------------------


def _draw_rows(compiled: Compiled, file: Path, settings: EvaluationSettings) -> tuple[Arrays, np.ndarray]:
    """Return the rows to evaluate, and their indices in the file."""
    inputs = read_inputs(compiled, file)
    count = len(next(iter(inputs.values())))
    if count <= settings.rows:
        return inputs, np.arange(count)
    random = np.random.default_rng([settings.seed, 0])
    index = np.sort(random.choice(count, settings.rows, replace=False))
    return {name: a[index] for name, a in inputs.items()}, index


def _check_features(manifest: Manifest) -> None:
    """Raise InvalidOptionError if the file's rows do not contain the explained features as inputs."""
    unfit = [e.tensor.name for e in manifest.explained if e.at or e.tensor not in manifest.inputs]
    if unfit:
        raise InvalidOptionError(
            f"{unfit} are token ids or inner tensors, but the measures replace features of a float input. "
            "Evaluate an entry that explains float inputs, such as the part of the model after the "
            "embedding."
        )


# -- baselines -----------------------------------------------------------------------------------------


def _control_key(manifest: Manifest, baseline: np.ndarray) -> object:
    """Return a key; entries with the same key have the same curve for the same order of features."""
    inputs = tuple(e.tensor.name for e in manifest.explained)
    question = manifest.digests.model, manifest.explained_output, manifest.targets, inputs, manifest.players
    return *question, baseline.tobytes()


def _curve_baseline(
    subject: ExplainedModel, entry: _Entry, entries: Sequence[_Entry]
) -> tuple[np.ndarray, str]:
    """Return the curve's baseline and its name: the reference mean of the model's first entry with one.

    With one baseline per model, the curves of different methods start and end alike.
    """
    manifest = entry.compiled.manifest
    for other in entries:
        if other.compiled.manifest.references and _comparable(manifest, other.compiled.manifest):
            mine = other.compiled.manifest.digests.references == manifest.digests.references
            baseline = subject.flat(warmup_rows(other.compiled))[0]
            name = "reference mean" + ("" if mine else f" of {other.name}")
            return baseline, name if baseline.any() else "zeros"
    return subject.baseline, "zeros"


def _comparable(a: Manifest, b: Manifest) -> bool:
    return a.digests.model == b.digests.model and [e.tensor for e in a.explained] == [
        e.tensor for e in b.explained
    ]


# -- references ----------------------------------------------------------------------------------------


def _match_references(
    compiled: Sequence[Compiled], names: Sequence[str], files: Sequence[Path]
) -> list[GivenReferences | None]:
    """Return for each entry the references that it was compiled with; None if no file holds them.

    Raises:
        InvalidReferencesError: if no entry was compiled with a file.
    """
    sets: list[GivenReferences | None] = [None] * len(compiled)
    for file in files:
        reasons = []
        for i, entry in enumerate(compiled):
            try:
                reference_set = read_references(entry, names[i], file)
            except InvalidReferencesError as error:
                reasons.append(str(error))
                continue
            sets[i] = reference_set
        if len(reasons) == len(compiled):
            raise InvalidReferencesError("\n".join(dict.fromkeys(reasons)))
    return sets


def read_references(entry: Compiled, name: str, file: Path) -> GivenReferences:
    """Read references; raise InvalidReferencesError if the entry was compiled with other ones."""
    table = read_table(file, entry.manifest)
    rows = table.rows
    kinds = {v.name: v.type.tensor_type.elem_type for v in entry.source.graph.input}
    explained = [e.tensor for e in entry.manifest.explained]
    shapes = {e.name: ((1, *e.shape), tensor_dtype_to_np_dtype(kinds[e.name])) for e in explained}
    weights = table.unequal_weights
    missing = bool(entry.manifest.takes_missing)
    prepared = prepare(rows, weights, shapes, missing=missing)
    if prepared.digest != entry.manifest.digests.references:
        raise InvalidReferencesError(
            f"{file}: these are not the references that {name!r} was compiled with (the digests differ). "
            "Give that file, or leave --references out: the other measures need none."
        )
    arrays: Mapping[str, np.ndarray] = rows if isinstance(rows, dict) else {next(iter(shapes)): rows}
    return GivenReferences(dict(arrays), weights)
