"""`rationale references --decision`: the references of a decision profile's policy, drawn from rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rationale.terminal import console, progress_bar

if TYPE_CHECKING:
    import numpy as np

    from rationale.profiles.scores import Scores
    from rationale.schema.profile import DecisionProfile
    from rationale.tables.files import Columns, Table
    from rationale.tables.represented import StandsFor

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
    features: "Columns" = None
    seed: int = 0
    allow_pickle: bool = False

    def check(self) -> None:
        """Check the options that need no file; raise InvalidOptionError."""
        from rationale.errors import InvalidOptionError
        from rationale.schema.methods import WEIGHTS, takers
        from rationale.schema.profile import POLICIES

        if self.by not in BY:
            raise InvalidOptionError(f"--by {self.by!r}: choose {', '.join(BY)}.")
        if self.policy is not None and self.policy not in POLICIES:
            raise InvalidOptionError(f"--policy {self.policy!r}: choose {', '.join(POLICIES[:-1])}.")
        if self.by == "whole" and (self.count is not None or self.measure is not None):
            raise InvalidOptionError("--by whole takes every row: --count and --measure are for draws.")
        if self.by != "stratified" and self.stratify is not None:
            raise InvalidOptionError(f"--stratify is for --by stratified, not for {self.by}.")
        weighted = takers(WEIGHTS)
        if self.measure is not None and self.measure not in weighted:
            raise InvalidOptionError(
                f"--measure {self.measure!r}: name the method to compile with, {', '.join(weighted)}."
            )


@dataclass(frozen=True)
class Applicants:
    """The rows of a file, and the model's answers to them.

    Attributes:
        table: the rows as read, in the columns that the model knows.
        model: a path, or the model that a fitted one was converted to.
        names: names of the features of the only input, if it has several; for the compile.
    """

    table: "Table"
    model: Any
    names: Any
    found: "Scores"
    knocked_out: "np.ndarray"

    @cached_property
    def scores(self) -> "np.ndarray":
        return self.found.scores

    def feeds(self, rows: "np.ndarray") -> dict[str, "np.ndarray"]:
        return {name: array[rows] for name, array in self.found.feeds.items()}


@dataclass(frozen=True)
class Made:
    """A set to write, with lines and warnings for the user.

    Attributes:
        table: its rows, with weights if they are not equal, and the population that they stand for.
    """

    table: "Table"
    lines: list[str]
    warnings: list[str]


def draw_by_policy(request: DrawRequest) -> Made:
    """Return the set; raise RationaleError."""
    import numpy as np

    from rationale.errors import InvalidOptionError
    from rationale.profiles.policies import BAND, Scored, check_count, parse_band, passing, population
    from rationale.schema.profile import as_profile
    from rationale.tables.represented import MeanOutput, StandsFor

    request.check()
    band = parse_band(request.band or BAND)
    profile = as_profile(request.decision)
    policy = request.policy or profile.references.policy
    if request.band is not None and policy != "near_threshold":
        raise InvalidOptionError(f"--band: only of the policy near_threshold, and this is {policy}.")
    applicants, warnings = read_applicants(request, profile)
    scored = Scored(applicants.scores, applicants.knocked_out)
    rows = population(profile, policy, scored, band)
    if request.count is not None:
        check_count(request.count, rows, policy)
    drawn, weights = _draw(request, applicants, rows, min(request.count or COUNT, len(rows)), request.seed)
    answers = applicants.found.answers
    stands_for = StandsFor(
        rows=len(rows),
        policy=policy,
        threshold=profile.threshold,
        model=applicants.found.model,
        outputs={
            profile.tensor: MeanOutput(
                mean=tuple(answers[rows].mean(axis=0)), spread=tuple(answers.std(axis=0))
            )
        },
    )
    outcomes = scored.outcomes(profile)
    base = float(np.average(applicants.scores[drawn], weights=weights))
    lines = [
        f"{len(outcomes)} rows: {_counted(outcomes)}; an applicant passes with a score {passing(profile)}",
        f"{policy}: {len(rows)} rows, scores {_range(applicants.scores[rows])}",
        f"{len(drawn)} references {_how(request.by, weights)}; mean score {base:.6g} (of {policy} "
        f"{applicants.scores[rows].mean():.6g})",
    ]
    warnings += _of_set(profile, policy, outcomes, drawn)
    if request.measure is not None:
        measured, doubts = _measured(request, profile, applicants, rows, outcomes)
        lines, warnings = lines + measured, warnings + doubts
    elif request.by != "whole":
        lines.append("how much the reasons move with the draw: --measure METHOD")
    return Made(_table(applicants.table, drawn, weights, stands_for), lines, warnings)


def _table(
    given: "Table", rows: "np.ndarray", weights: "np.ndarray | None", stands_for: "StandsFor"
) -> "Table":
    """Return rows of a table; columns of texts next to numbers become arrays [K, 1] by their names."""
    from rationale.tables.files import Table

    arrays = {name: array[rows] for name, array in given.arrays.items()}
    columns = given.columns
    if None in arrays and arrays[None].dtype == object:
        assert columns is not None
        arrays, columns = {name: arrays[None][:, [i]] for i, name in enumerate(columns)}, None
    return Table({name: _typed(array) for name, array in arrays.items()}, columns, weights, stands_for)


def _typed(array: "np.ndarray") -> "np.ndarray":
    """Return objects as numbers or texts."""
    if array.dtype != object:
        return array
    are_words = any(isinstance(value, str) for value in array.flat)
    return array.astype(str if are_words else float)


def read_applicants(request: DrawRequest, profile: "DecisionProfile") -> tuple[Applicants, list[str]]:
    """Return the rows of the file with their scores, and warnings; raise RationaleError."""
    import numpy as np

    from rationale.conversion.convert import convert
    from rationale.conversion.parity import ANY
    from rationale.decisions.decide import read_cell
    from rationale.errors import InvalidModelError, InvalidReferencesError
    from rationale.from_files import read_model
    from rationale.profiles.policies import knocked_out
    from rationale.profiles.scores import scores_of
    from rationale.tables.files import read_rows

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
            + ("no rows" if not table.count else "its rows have weights, as sets that were made of others do")
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
    found = scores_of(model, rows, profile)
    values = dict[str, Sequence[Any]]()
    for feature in {rule.feature for rule in profile.knock_outs}:
        known = column_of(request.file, table, feature)
        if known is None:
            warnings.append(
                f"{request.file} has no column {feature!r}, by which a knock-out of the profile declines: "
                "rows that it would decline count as passed."
            )
        else:
            values[feature] = [read_cell(cell, feature, profile.knock_outs) for cell in known]
    declined = knocked_out(profile, len(found.scores), values)
    return Applicants(table, model, names, found, np.asarray(declined)), warnings


def column_of(file: Path, table: "Table", name: str) -> Sequence[Any] | None:
    """Return the cells of a column, which the model need not read; None if the file has no such column."""
    from rationale.errors import InvalidReferencesError
    from rationale.tables.files import read_rows

    if name in table.arrays:
        found = table.arrays[name].reshape(table.count, -1)
        return list(found[:, 0]) if found.shape[1] == 1 else None
    if table.columns is not None and name in table.columns:
        return list(table.arrays[None][:, table.columns.index(name)])
    if file.suffix.lower() not in (".csv", ".parquet"):
        return None
    try:
        column = read_rows(file, [name], [name])
    except InvalidReferencesError:
        return None
    if column.columns is None:  # without a header all of it was read
        return None
    return list(column.arrays[None][:, 0])


def _draw(
    request: DrawRequest, applicants: Applicants, rows: "np.ndarray", count: int, seed: int
) -> "tuple[np.ndarray, np.ndarray | None]":
    """Draw the indices [K] of the set, and weights [K] if they are not equal."""
    from rationale.errors import InvalidOptionError
    from rationale.evaluate.decisions.decided import plain_cell
    from rationale.profiles.policies import systematic
    from rationale.references.centroids import keeping_means
    from rationale.references.medoids import medoids

    if request.by == "whole":
        return rows, None
    if request.by == "medoids":
        chosen, shares = medoids(applicants.found.feeds, rows, count, seed)
        of_all = applicants.scores[rows]
        off = (applicants.scores[chosen] - of_all.mean()) / (of_all.std() or 1)
        return chosen, keeping_means(shares, off[:, None])
    strata = None if request.stratify is None else column_of(request.file, applicants.table, request.stratify)
    if request.stratify is not None and strata is None:
        raise InvalidOptionError(f"--stratify {request.stratify!r}: {request.file} has no such column.")
    return systematic(rows, count, seed, strata and [plain_cell(cell) for cell in strata]), None


def _measured(
    request: DrawRequest,
    profile: "DecisionProfile",
    applicants: Applicants,
    rows: "np.ndarray",
    outcomes: "np.ndarray",
) -> tuple[list[str], list[str]]:
    """Return a table of answers by K, which shows how far they move, and warnings."""
    import numpy as np

    from rationale.compile import compile_model
    from rationale.evaluate.draws import ExplainedRows, explain_rows, mean_distance, mean_distance_of_draws
    from rationale.methods.methods import make_method
    from rationale.profiles.policies import systematic
    from rationale.schema.methods import WEIGHTS

    declined = np.flatnonzero((outcomes == "decline") & ~applicants.knocked_out)
    if not len(declined):
        return [], ["nothing was measured: the scores decline no row, and there are no reasons."]
    if len(declined) > DECLINES:
        declined = np.sort(np.random.default_rng(request.seed).choice(declined, DECLINES, replace=False))
    count = min(request.count or COUNT, len(rows))
    sizes = sorted({size for size in (count // 2, count, 2 * count) if 0 < size <= len(rows)})
    many = systematic(rows, min(len(rows), MANY * count), request.seed)
    feeds, seeds = applicants.feeds(declined), range(request.seed, request.seed + DRAWS)
    lines = [
        f"{len(declined)} declines, {request.measure}, {DRAWS} draws: how far attributions move (in parts of "
        "a row's largest), for how many the reasons differ",
        f"{'':32}{'from draw to draw':24}from {len(many)} along the score",
        f"{'K':>5}  {'base value':25}" + f"{'attributions':14}{'reasons':10}" * 2,
    ]
    with progress_bar() as progress:
        done = 0

        def answer(drawn: "np.ndarray", weights: "np.ndarray | None") -> ExplainedRows:
            nonlocal done
            options = {} if weights is None else {WEIGHTS: weights}
            method = make_method(str(request.measure), applicants.feeds(drawn), options)
            made = compile_model(applicants.model, method, feature_names=applicants.names, decision=profile)
            done += 1
            progress("explaining declines", done, DRAWS * len(sizes) + 1)
            return explain_rows(made, feeds)

        by_many = answer(many, None)
        for size in sizes:
            answers = [answer(*_draw(request, applicants, rows, size, seed)) for seed in seeds]
            base = [each.base_value for each in answers]
            moves = (mean_distance_of_draws(answers), mean_distance((by_many, each) for each in answers))
            lines.append(
                f"{size:5d}  {f'{min(base):.5g} to {max(base):.5g}':25}"
                + "".join(f"{f'{each.mean:.1%}':14}{f'{each.differ:.0%}':10}" for each in moves).rstrip()
            )
    return lines, []


def _of_set(
    profile: "DecisionProfile", policy: str, outcomes: "np.ndarray", drawn: "np.ndarray"
) -> list[str]:
    """Return warnings for a user of the set."""
    from rationale.schema.profile import NAMED_BY_REGULATION_B

    found = list[str]()
    due = profile.references.policy
    if policy != due:
        found.append(f"drawn as {policy}; the decision profile says {due}: the compile will warn.")
    if policy not in NAMED_BY_REGULATION_B:
        found.append(
            f"{policy}: the commentary on Regulation B, 9(b)(2)-5, names near_threshold and all_applicants."
        )
    if policy == "all_applicants" and not (outcomes == "decline").any():
        found.append("none of the rows is declined: are these all who applied, or those who were accepted?")
    if len(drawn) < FEW:
        found.append(f"{len(drawn)} references are few: an answer depends on each of them. Give more rows.")
    return found


def _how(by: str, weights: Any) -> str:
    if by == "medoids":
        return f"are medoids, somebody's rows, weighted (the heaviest {weights.max():.1%})"
    return "are all of them" if by == "whole" else "drawn along the score, of equal weight"


def _counted(outcomes: "np.ndarray") -> str:
    import numpy as np

    kinds, counts = np.unique(outcomes, return_counts=True)
    return ", ".join(f"{count} {kind}" for kind, count in zip(kinds, counts, strict=True))


def _range(scores: "np.ndarray") -> str:
    return f"{scores.min():.4g} to {scores.max():.4g}"
