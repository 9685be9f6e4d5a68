"""`rationale references --decision`: the references of a decision profile's policy, drawn from rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from rationale.compile import compile_model
from rationale.conversion.convert import convert
from rationale.conversion.parity import ANY
from rationale.decisions.decide import read_cell
from rationale.errors import InvalidModelError, InvalidOptionError, InvalidReferencesError
from rationale.evaluate.decisions.decided import plain_cell
from rationale.evaluate.draws import ExplainedRows, explain_rows, mean_distance, mean_distance_of_draws
from rationale.from_files import read_model
from rationale.methods.methods import make_method
from rationale.profiles.policies import (
    BAND,
    ScoredRows,
    check_count,
    describe_passing,
    draw_systematic,
    knocked_out,
    parse_band,
    population,
    score_range,
)
from rationale.profiles.scores import ModelScores, score_rows
from rationale.references.centroids import weights_keeping_means
from rationale.references.medoids import medoids
from rationale.schema.methods import WEIGHTS, takers
from rationale.schema.profile import NAMED_BY_REGULATION_B, POLICIES, DecisionProfile, as_profile
from rationale.tables.files import TABLES, Columns, Table, read_rows
from rationale.tables.represented import MeanOutput, StandsFor
from rationale.terminal import console, progress_bar

COUNT, FEW = 100, 20  # default rows of a set, and the least without a warning
DRAWS, DECLINES = 3, 100  # draws of each size, and declines that each explains
MANY = 10  # factor of the larger reference set that draws are compared with
BY = ("stratified", "medoids", "whole")


@dataclass(frozen=True)
class DrawRequest:
    """The options of the command line; see its help."""

    file: Path
    model: Path
    decision: Path
    policy: str | None = None
    by: str = "stratified"
    count: int | None = None
    band: str | None = None
    stratify: str | None = None
    measure: str | None = None
    features: Columns = None
    seed: int = 0
    allow_pickle: bool = False

    def check(self) -> None:
        """Check the options that need no file; raise InvalidOptionError."""
        if self.by not in BY:
            raise InvalidOptionError(f"--by {self.by!r}: choose {', '.join(BY)}.")
        if self.policy is not None and self.policy not in POLICIES:
            raise InvalidOptionError(f"--policy {self.policy!r}: choose {', '.join(POLICIES[:-1])}.")
        if self.by == "whole" and (self.count is not None or self.measure is not None):
            raise InvalidOptionError(
                "--by whole takes every row: leave --count and --measure out, or choose another --by."
            )
        if self.by != "stratified" and self.stratify is not None:
            raise InvalidOptionError(f"--stratify works only with --by stratified, not with {self.by}.")
        weighted = takers(WEIGHTS)
        if self.measure is not None and self.measure not in weighted:
            raise InvalidOptionError(
                f"--measure {self.measure!r}: name the method to compile with, {', '.join(weighted)}."
            )


@dataclass(frozen=True)
class ScoredApplicants:
    """The rows of a file, and the model's answers to them.

    Attributes:
        table: the rows as read, in the columns that the model knows.
        model: a path, or the model that a fitted one was converted to.
        names: names of the features of the only input, if it has several; for the compile.
    """

    table: Table
    model: Any
    names: Any
    model_scores: ModelScores
    knocked_out: np.ndarray

    @cached_property
    def scores(self) -> np.ndarray:
        return self.model_scores.scores

    def feeds(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        return {name: array[rows] for name, array in self.model_scores.feeds.items()}


@dataclass(frozen=True)
class DrawnSet:
    """A set to write, with lines and warnings for the user.

    Attributes:
        table: its rows, with weights if they are not equal, and the population that they stand for.
    """

    table: Table
    lines: list[str]
    warnings: list[str]


def draw_by_policy(request: DrawRequest) -> DrawnSet:
    """Return the set; raise RationaleError."""
    request.check()
    band = parse_band(request.band or BAND)
    profile = as_profile(request.decision)
    policy = request.policy or profile.references.policy
    if request.band is not None and policy != "near_threshold":
        raise InvalidOptionError(f"--band belongs to the policy near_threshold, but the policy is {policy}.")
    applicants, warnings = read_applicants(request, profile)
    scored = ScoredRows(applicants.scores, applicants.knocked_out)
    rows = population(profile, policy, scored, band)
    if request.count is not None:
        check_count(request.count, rows, policy)
    drawn, weights = _draw_rows(
        request, applicants, rows, min(request.count or COUNT, len(rows)), request.seed
    )
    answers = applicants.model_scores.answers
    stands_for = StandsFor(
        rows=len(rows),
        policy=policy,
        threshold=profile.threshold,
        model=applicants.model_scores.model,
        outputs={
            profile.tensor: MeanOutput(
                mean=tuple(answers[rows].mean(axis=0)), spread=tuple(answers.std(axis=0))
            )
        },
    )
    outcomes = scored.outcomes(profile)
    base = float(np.average(applicants.scores[drawn], weights=weights))
    lines = [
        f"{len(outcomes)} rows: {_outcome_counts(outcomes)}; an applicant passes with a score "
        f"{describe_passing(profile)}",
        f"{policy}: {len(rows)} rows, scores {score_range(applicants.scores[rows])}",
        f"{len(drawn)} references {_describe_draw(request.by, weights)}; mean score {base:.6g} (of {policy} "
        f"{applicants.scores[rows].mean():.6g})",
    ]
    warnings += _set_warnings(profile, policy, outcomes, drawn)
    if request.measure is not None:
        measured, doubts = _measure_draws(request, profile, applicants, rows, outcomes)
        lines, warnings = lines + measured, warnings + doubts
    elif request.by != "whole":
        lines.append("how much the reasons move with the draw: --measure METHOD")
    return DrawnSet(_table(applicants.table, drawn, weights, stands_for), lines, warnings)


def _table(table: Table, rows: np.ndarray, weights: np.ndarray | None, stands_for: StandsFor) -> Table:
    """Return rows of a table; columns of texts next to numbers become arrays [K, 1] by their names."""
    arrays = {name: array[rows] for name, array in table.arrays.items()}
    columns = table.columns
    if None in arrays and arrays[None].dtype == object:
        assert columns is not None
        arrays, columns = {name: arrays[None][:, [i]] for i, name in enumerate(columns)}, None
    return Table({name: _infer_types(array) for name, array in arrays.items()}, columns, weights, stands_for)


def _infer_types(array: np.ndarray) -> np.ndarray:
    """Return objects as numbers or texts."""
    if array.dtype != object:
        return array
    are_words = any(isinstance(value, str) for value in array.flat)
    return array.astype(str if are_words else float)


def read_applicants(request: DrawRequest, profile: DecisionProfile) -> tuple[ScoredApplicants, list[str]]:
    """Return the rows of the file with their scores, and warnings; raise RationaleError."""
    if not request.model.is_file():
        raise InvalidModelError(f"{request.model}: cannot be read: no such file.")
    read = read_model(request.model, request.features, allow_pickle=request.allow_pickle)
    columns, warnings = read.columns, list[str]()
    if read.labelled and not read.fitted and columns is not None and not isinstance(columns, dict):
        columns = {str(name): [str(name)] for name in columns}  # each is an input of its own
    table = read_rows(request.file, columns, read.texts, underscored=read.underscored)
    if table.weights is not None or not table.count:
        raise InvalidReferencesError(
            f"{request.file}: "
            + ("no rows" if not table.count else "its rows have weights, like a set that this command wrote")
            + ". Give rows of applicants, the more the better."
        )
    model, names, rows = read.model, request.features or table.columns, table.arrays
    if read.fitted:
        converted = convert(model, read.labelled_rows(table), allow_parity=ANY)  # scores alone are read
        console().print(converted.report)
        assert converted.feeds is not None
        model, rows = converted.model, dict(converted.feeds.items())
        names = None if converted.by_column else converted.columns
    elif read.labelled:
        names = None
    scores = score_rows(model, rows, profile)
    values = dict[str, Sequence[Any]]()
    for feature in {rule.feature for rule in profile.knock_outs}:
        cells = column_of(request.file, table, feature)
        if cells is None:
            warnings.append(
                f"{request.file} has no column {feature!r}, which a knock-out of the profile tests: rows "
                "that it would decline count as passed."
            )
        else:
            values[feature] = [read_cell(cell, feature, profile.knock_outs) for cell in cells]
    declined = knocked_out(profile, len(scores.scores), values)
    return ScoredApplicants(table, model, names, scores, np.asarray(declined)), warnings


def column_of(file: Path, table: Table, name: str) -> Sequence[Any] | None:
    """Return the cells of a column, which the model need not read; None if the file has no such column."""
    if name in table.arrays:
        values = table.arrays[name].reshape(table.count, -1)
        return list(values[:, 0]) if values.shape[1] == 1 else None
    if table.columns is not None and name in table.columns:
        return list(table.arrays[None][:, table.columns.index(name)])
    if file.suffix.lower() not in TABLES:
        return None
    try:
        column = read_rows(file, [name], [name])
    except InvalidReferencesError:
        return None
    if column.columns is None:  # without a header all of it was read
        return None
    return list(column.arrays[None][:, 0])


def _draw_rows(
    request: DrawRequest, applicants: ScoredApplicants, rows: np.ndarray, count: int, seed: int
) -> tuple[np.ndarray, np.ndarray | None]:
    """Draw the indices [K] of the set, and weights [K] if they are not equal."""
    if request.by == "whole":
        return rows, None
    if request.by == "medoids":
        chosen, shares = medoids(applicants.model_scores.feeds, rows, count, seed)
        population_scores = applicants.scores[rows]
        off = (applicants.scores[chosen] - population_scores.mean()) / (population_scores.std() or 1)
        return chosen, weights_keeping_means(shares, off[:, None])
    strata = None if request.stratify is None else column_of(request.file, applicants.table, request.stratify)
    if request.stratify is not None and strata is None:
        raise InvalidOptionError(f"--stratify {request.stratify!r}: {request.file} has no such column.")
    return draw_systematic(rows, count, seed, strata and [plain_cell(cell) for cell in strata]), None


def _measure_draws(
    request: DrawRequest,
    profile: DecisionProfile,
    applicants: ScoredApplicants,
    rows: np.ndarray,
    outcomes: np.ndarray,
) -> tuple[list[str], list[str]]:
    """Return a table of how far draws of each size vary in base value and attributions, and warnings."""
    declined = np.flatnonzero((outcomes == "decline") & ~applicants.knocked_out)
    if not len(declined):
        return [], ["nothing was measured, because no row is declined and there are no reasons."]
    if len(declined) > DECLINES:
        declined = np.sort(np.random.default_rng(request.seed).choice(declined, DECLINES, replace=False))
    count = min(request.count or COUNT, len(rows))
    sizes = sorted({size for size in (count // 2, count, 2 * count) if 0 < size <= len(rows)})
    many = draw_systematic(rows, min(len(rows), MANY * count), request.seed)
    feeds, seeds = applicants.feeds(declined), range(request.seed, request.seed + DRAWS)
    lines = [
        f"{len(declined)} declines, {request.measure}, {DRAWS} draws: how far attributions move (in parts of "
        "a row's largest), for how many the reasons differ",
        f"{'':32}{'from draw to draw':24}from {len(many)} along the score",
        f"{'K':>5}  {'base value':25}" + f"{'attributions':14}{'reasons':10}" * 2,
    ]
    with progress_bar() as progress:
        compiled_sets = 0

        def answer(drawn: np.ndarray, weights: np.ndarray | None) -> ExplainedRows:
            nonlocal compiled_sets
            options = {} if weights is None else {WEIGHTS: weights}
            method = make_method(str(request.measure), applicants.feeds(drawn), options)
            compiled = compile_model(
                applicants.model, method, feature_names=applicants.names, decision=profile
            )
            compiled_sets += 1
            progress("explaining declines", compiled_sets, DRAWS * len(sizes) + 1)
            return explain_rows(compiled, feeds)

        by_many = answer(many, None)
        for size in sizes:
            answers = [answer(*_draw_rows(request, applicants, rows, size, seed)) for seed in seeds]
            base = [each.base_value for each in answers]
            moves = (mean_distance_of_draws(answers), mean_distance((by_many, each) for each in answers))
            lines.append(
                f"{size:5d}  {f'{min(base):.5g} to {max(base):.5g}':25}"
                + "".join(f"{f'{each.mean:.1%}':14}{f'{each.differ:.0%}':10}" for each in moves).rstrip()
            )
    return lines, []


def _set_warnings(
    profile: DecisionProfile, policy: str, outcomes: np.ndarray, drawn: np.ndarray
) -> list[str]:
    """Return warnings for a user of the set."""
    warnings = list[str]()
    declared = profile.references.policy
    if policy != declared:
        warnings.append(f"drawn as {policy}; the decision profile says {declared}: the compile will warn.")
    if policy not in NAMED_BY_REGULATION_B:
        warnings.append(
            f"{policy}: the commentary on Regulation B, 9(b)(2)-5, names near_threshold and all_applicants."
        )
    if policy == "all_applicants" and not (outcomes == "decline").any():
        warnings.append("no row is declined. Check that the file has all applicants, not only accepted ones.")
    if len(drawn) < FEW:
        warnings.append(
            f"{len(drawn)} references are few: an answer depends on each of them. Give more rows."
        )
    return warnings


def _describe_draw(by: str, weights: Any) -> str:
    if by == "medoids":
        return f"are medoids (real rows), weighted (the heaviest {weights.max():.1%})"
    return "are all of them" if by == "whole" else "drawn along the score, of equal weight"


def _outcome_counts(outcomes: np.ndarray) -> str:
    kinds, counts = np.unique(outcomes, return_counts=True)
    return ", ".join(f"{count} {kind}" for kind, count in zip(kinds, counts, strict=True))
