"""Recourse beside DiCE, treecf and OCEAN: plans, their costs and times, checked by the fitted models.

    python -m benchmarks.recourse [trees small perceptron words] [--rows 300] [--peer-rows 20]
        [--peers dice,treecf,ocean]

`trees` are 300 of XGBoost, of depth 6, on 23 or 24 features; `small` are 100 of depth 4 on the same data in
thousands, so that numbers need not be whole, and the only ones that OCEAN takes in minutes; `perceptron`
is a pipeline of scikit-learn with 64 and 32 units on the same data; `words` is a pipeline of one-hot coded
words, numbers and boosted trees.
RATIONALE_TEST_DATA names a folder with taiwan_credit_default.csv and german_credit.tsv (UCI); without them,
rows are drawn. The applicants are the first rows that the model declines. For each model it prints

    our plans     the fitted model scores each again: how many it would decline (wrong), how many change a
                  feature that the profile does not name (frozen), and the median cost of the cheapest
    flip points   beside an exhaustive scan of each feature by the fitted model: how many it finds nearer
    peers         on the first rows: how often their cheapest plan that the fitted model approves is cheaper
                  than ours, how often they prove an optimum of at most four changes, and how often our
                  cheapest is within 15% of it

and medians of milliseconds, one thread each; of flip points, the least of three times of each row. Peers:
pip install dice-ml treecf, and with Python 3.12 oceanpy.
A peer that is not there is left out.
"""

import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.cases import names, parser_of, positive, reporting_errors
from benchmarks.timing import quietly
from rationale import DeepShap, TreeShap, compile_model
from rationale.decisions.decide import Decision
from rationale.decisions.rows import feature_values
from rationale.graph.runtime.session import Runner
from rationale.recourse.entry import RunEntry, recourse_finder
from rationale.recourse.levers import DEARER, Lever
from rationale.recourse.search import MOST_CHANGES
from rationale.terminal import progress_bar

if TYPE_CHECKING:
    import pandas as pd

    from rationale.artifact.compiled import Compiled
    from rationale.recourse.flip_points import FlipPoint
    from rationale.recourse.plans import Plan
    from rationale.recourse.recourse import RecourseFinder

DICE, TREECF, OCEAN = "dice", "treecf", "ocean"
MODULES = {DICE: "dice_ml", TREECF: "treecf", OCEAN: "ocean"}
SMALL = "small"
TREES, DEPTH, REFERENCES, TRAINED = 300, 6, 200, 20_000
NEAR = 1.15  # of a proved optimum
DENSE = 401  # numbers of a scan of a model that is no tree
TIMES = 3  # that flip points are found; the least time counts, which other programs disturbed least
TRIED = 3  # plans that DiCE is asked for
_DIGITS = 6  # behind the point: else DiCE rounds features that it must not change
NUMBERS_OF_GERMAN = (1, 4, 7, 10, 12, 15, 17)


# -- models --------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Subject:
    """A fitted model, and the rules of recourse.

    Attributes:
        rows: applicants, of the training set or not.
        actionable: the features that can change.
        is_tree: whether the model is an ensemble of trees over the features.
    """

    name: str
    model: Any
    rows: "pd.DataFrame"
    threshold: float
    actionable: tuple[str, ...]
    method: Any
    output: str
    is_tree: bool = False

    def scores(self, rows: "pd.DataFrame") -> np.ndarray:
        """Return the fitted model's probability of class 1."""
        return np.asarray(self.model.predict_proba(rows)[:, 1])

    @cached_property
    def declined(self) -> "pd.DataFrame":
        """The rows that the fitted model declines."""
        return self.rows[self.scores(self.rows) > self.threshold]

    def compiled(self) -> "Compiled":
        """Compile the model with a decision profile."""
        profile = {
            "output": self.output,
            "threshold": self.threshold,
            "adverse": "above",
            "actionable": {name: {} for name in self.actionable},
        }
        return compile_model(self.model, self.method, decision=profile)


def _file(name: str) -> Path | None:
    folder = os.environ.get("RATIONALE_TEST_DATA")
    return Path(folder) / name if folder and (Path(folder) / name).is_file() else None


def numbers() -> tuple["pd.DataFrame", np.ndarray, tuple[str, ...]]:
    """Return rows of numbers, labels, and the features that can change."""
    import pandas as pd

    if file := _file("taiwan_credit_default.csv"):
        table = pd.read_csv(file)
        rows, labels = table.iloc[:, 1:-1].astype(float), table.iloc[:, -1].to_numpy()
        actionable = [name for name in rows if name.startswith(("BILL", "PAY_AMT", "LIMIT"))]
    else:
        random = np.random.default_rng(0)
        x = np.round(random.standard_normal((TRAINED + 5000, 24)) * 1000)
        score = (x @ random.standard_normal(24) + np.abs(x[:, 0]) - np.abs(x[:, 1])) / 3000
        labels = (score + random.standard_normal(len(x)) > 1).astype(int)
        rows = pd.DataFrame(x, columns=[f"f{i}" for i in range(24)])
        actionable = list(rows)[:14]
    return rows, labels, tuple(actionable)


def trees() -> Subject:
    """Return boosted trees on whole numbers."""
    return _trees("trees", 1, n_estimators=TREES, max_depth=DEPTH)


def small() -> Subject:
    """Return fewer and lower boosted trees on the same numbers in thousands, which need not be whole."""
    return _trees(SMALL, 1000, n_estimators=100, max_depth=4)


def _trees(name: str, unit: int, **sizes: int) -> Subject:
    from xgboost import XGBClassifier

    rows, labels, actionable = numbers()
    rows = rows / unit
    model = XGBClassifier(**sizes, n_jobs=1)
    model.fit(rows[:TRAINED], labels[:TRAINED])
    references = TreeShap(rows[TRAINED : TRAINED + REFERENCES])
    return Subject(name, model, rows, 0.3, actionable, references, "probabilities[1]", is_tree=True)


def perceptron() -> Subject:
    """Return a perceptron on scaled numbers."""
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    rows, labels, actionable = numbers()
    network = MLPClassifier((64, 32), max_iter=12, random_state=0)
    with quietly():
        model = make_pipeline(StandardScaler(), network).fit(rows[:TRAINED], labels[:TRAINED])
    references = DeepShap(rows[TRAINED : TRAINED + REFERENCES])
    return Subject("perceptron", model, rows, 0.3, actionable, references, "probabilities[1]")


def words() -> Subject:
    """Return boosted trees on one-hot coded words, and numbers."""
    import pandas as pd
    from sklearn.compose import make_column_transformer
    from sklearn.ensemble import GradientBoostingClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    if file := _file("german_credit.tsv"):
        table = pd.read_csv(file, sep="\t", header=None)
        rows, labels = table.iloc[:, :-1], table.iloc[:, -1].to_numpy() == 2
    else:
        random = np.random.default_rng(0)
        draws = random.integers(1, 6, (1000, 20))
        labels = draws[:, 0] - draws[:, 5] + draws[:, 1] / 2 + random.normal(size=1000) > 2
        rows = pd.DataFrame(
            {i: d if i in NUMBERS_OF_GERMAN else [f"A{v}" for v in d] for i, d in enumerate(draws.T)}
        )
    rows = rows.set_axis([f"x{i}" for i in range(rows.shape[1])], axis=1)
    coded = [f"x{i}" for i in range(rows.shape[1]) if i not in NUMBERS_OF_GERMAN]
    rows = rows.astype({name: float for name in rows if name not in coded})
    columns = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore"), coded), remainder="passthrough"
    )
    boosted = GradientBoostingClassifier(n_estimators=100, max_depth=3, random_state=0)
    model = make_pipeline(columns, boosted).fit(rows[:700], labels[:700])
    actionable = ("x0", "x1", "x4", "x5", "x9", "x13", "x18")
    return Subject("words", model, rows, 0.25, actionable, TreeShap(rows[-REFERENCES:]), "probabilities[1]")


SUBJECTS: dict[str, Callable[[], Subject]] = {
    "trees": trees,
    SMALL: small,
    "perceptron": perceptron,
    "words": words,
}


# -- ours ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Ours:
    """Our recourse for one applicant."""

    row: "pd.DataFrame"
    points: "Sequence[FlipPoint]"
    plans: "Sequence[Plan]"
    certified: bool
    flip_ms: float
    plans_ms: float


def our_recourse(
    subject: Subject, compiled: "Compiled", finder: "RecourseFinder", rows: int
) -> Iterator[Ours]:
    """Yield the recourse of the first rows that the entry declines."""
    plain = Runner(compiled.source, users_model=True, threads=1)
    entry = RunEntry(compiled.manifest, plain, compiled.loaded(threads=1))
    frame = subject.declined[:rows]
    inputs = compiled.fit(frame)
    for i, values in enumerate(feature_values(compiled.manifest, inputs)):
        row = {name: array[i : i + 1] for name, array in inputs.items()}
        (decision,) = entry.decide(row, [values])
        assert isinstance(decision, Decision)
        flips_s = list[float]()
        for _ in range(TIMES):
            applicant = finder.applicant(entry, row, values, decision)
            began = time.perf_counter()
            points = finder.flip_points(applicant)
            between = time.perf_counter()
            flips_s.append(between - began)
        found = finder.plans(applicant)
        times = (1e3 * min(flips_s), 1e3 * (time.perf_counter() - between))
        yield Ours(frame.iloc[i : i + 1], points, found.plans, found.search == "complete", *times)


def after(row: "pd.DataFrame", changes: Mapping[str, Any]) -> "pd.DataFrame":
    """Return an applicant with changes."""
    return row.assign(**changes)


def scan_faults(subject: Subject, finder: "RecourseFinder", found: Ours) -> tuple[int, int]:
    """Return how many features flip the decision, and for how many of them a scan finds a nearer value."""
    import pandas as pd

    points, flips, nearer = {point.feature: point for point in found.points}, 0, 0
    splits = finder.manifest.splits
    scans = {lever.name: _numbers_of(lever, splits.get(lever.name), found.row) for lever in finder.features}
    tables = [
        found.row.loc[found.row.index.repeat(len(scan))].assign(**{name: scan})
        for name, scan in scans.items()
    ]
    approved = subject.scores(pd.concat(tables)) <= subject.threshold
    ends = np.cumsum([len(scan) for scan in scans.values()])
    for lever, passes in zip(finder.features, np.split(approved, ends[:-1]), strict=True):
        scan, point = np.asarray(scans[lever.name])[passes], points.get(lever.name)
        if not len(scan):
            continue
        flips += 1
        if point is None:
            nearer += 1
        elif lever.is_number:
            start = float(found.row[lever.name].iloc[0])
            least = np.abs(scan.astype(float) - start).min()
            least *= 1.0 if point.exact else 1 + DEARER
            rounding = 2 * np.spacing(np.float32(max(abs(start), abs(point.value))))
            nearer += bool(abs(point.value - start) > least + rounding)
    return flips, nearer


def _numbers_of(lever: Lever, splits: Sequence[float] | None, row: "pd.DataFrame") -> list[Any]:
    """Return the values of a scan: every choice, both sides of every split, or dense numbers."""
    if not lever.is_number:
        return [choice for choice in lever.choices or () if choice != row[lever.name].iloc[0]]
    if lever.choices is not None:
        numbers = np.asarray(lever.choices, float)
    elif splits:
        starts = np.asarray(splits, np.float32)
        before = np.nextafter(starts, np.float32(-np.inf))
        numbers = np.concatenate([starts, before]).astype(float)
        if lever.step:
            numbers = (
                np.concatenate([np.ceil(starts / lever.step), np.floor(before / lever.step)]) * lever.step
            )
    else:
        numbers = np.linspace(lever.least, lever.most, DENSE)
        numbers = np.unique(np.round(numbers / lever.step) * lever.step) if lever.step else numbers
    own = (lever.least <= numbers) & (numbers <= lever.most) & (numbers != row[lever.name].iloc[0])
    chosen: list[Any] = numbers[own].tolist()
    return chosen


# -- peers ---------------------------------------------------------------------------------------------

Peer = Callable[["pd.DataFrame"], tuple["pd.DataFrame", bool]]  # a row to changed rows, and whether proved


@dataclass(frozen=True, eq=False)
class _Shifted:
    """A model whose threshold is 0.5, which DiCE takes for granted."""

    subject: Subject

    def predict_proba(self, rows: "pd.DataFrame") -> np.ndarray:
        scores = np.clip(self.subject.scores(rows.astype(self.subject.rows.dtypes)), 1e-9, 1 - 1e-9)
        odds = scores / (1 - scores) * (1 - self.subject.threshold) / self.subject.threshold
        return np.stack([1 / (1 + odds), odds / (1 + odds)], axis=1)

    def predict(self, rows: "pd.DataFrame") -> np.ndarray:
        return np.asarray(self.predict_proba(rows)[:, 1] > 0.5).astype(int)


def dice(subject: Subject, finder: "RecourseFinder", seconds: int) -> Peer:
    """Return DiCE's genetic search, and its random one if that finds nothing."""
    del seconds  # it has no limit
    import dice_ml

    rows, levers = subject.rows[:TRAINED], finder.actionable
    model = _Shifted(subject)
    texts = [name for name in rows if name in finder.fields and not _lever(finder, name).is_number]
    data = dice_ml.Data(
        dataframe=rows.assign(declined=model.predict(rows)),
        continuous_features=[name for name in rows if name not in texts],
        outcome_name="declined",
        continuous_features_precision={name: _DIGITS for name in rows if name not in texts},
    )
    wrapped = dice_ml.Model(model=model, backend="sklearn")
    ranges = {
        lever.name: [lever.least, lever.most] if lever.is_number else list(lever.choices or ())
        for lever in levers
    }
    options = {"features_to_vary": list(subject.actionable), "permitted_range": ranges}
    searches = [dice_ml.Dice(data, wrapped, method=method) for method in ("genetic", "random")]

    def search(row: "pd.DataFrame") -> tuple["pd.DataFrame", bool]:
        for explainer in searches:
            try:
                found = explainer.generate_counterfactuals(row, TRIED, desired_class=0, **options)
            except Exception:  # noqa: S112 (of many types: it found none)
                continue
            changed = found.cf_examples_list[0].final_cfs_df
            if changed is not None and len(changed):
                return changed[list(row)].astype(row.dtypes), False
        return row[:0], False

    return search


def treecf(subject: Subject, finder: "RecourseFinder", seconds: int) -> Peer:
    """Return treecf's exact search over the levers."""
    import treecf as library

    levers = {lever.name: lever for lever in finder.actionable}
    frozen = [library.Freeze(name) for name in subject.rows if name not in levers]
    ranges = [library.Range(name, lever.least, lever.most) for name, lever in levers.items()]
    scales = {lever.name: lever.scale for lever in finder.features}
    explainer = library.Explainer(
        subject.model,
        constraints=[*frozen, *ranges],
        normalizers={name: scales.get(name, 1.0) for name in subject.rows},
        value_policy={name: "integer" for name, lever in levers.items() if lever.step == 1},
    )
    target = library.Target.probability(range=(0.0, subject.threshold))

    def search(row: "pd.DataFrame") -> tuple["pd.DataFrame", bool]:
        x = row.to_numpy(float)[0]
        found = explainer.explain(x, target, backend="exact", time_budget_s=seconds, seed=0)
        if isinstance(found, library.Infeasible):
            return row[:0], found.proof == "certified"
        changes = {name: new for name, (_, new) in found.changes.items()}
        return after(row, changes), found.proof == "optimal"

    return search


def ocean(subject: Subject, finder: "RecourseFinder", seconds: int) -> Peer:
    """Return OCEAN's search by constraint programming, with our rules, costs and number of changes."""
    import ocean as library
    from ocean.feature import Feature

    levers = {lever.name: lever for lever in finder.actionable}
    ends = {name: (float(own.min()) - 1, float(own.max()) + 1) for name, own in subject.rows.items()}
    described = {
        name: Feature(Feature.Type.CONTINUOUS, levels=[np.float32(end) for end in own])
        for name, own in ends.items()
    }
    mapper = library.abc.Mapper(described, columns=subject.rows.columns)
    base: Any = library.ConstraintProgrammingExplainer

    class Explainer(base):  # type: ignore[misc]  # OCEAN is untyped
        def set_majority_class(self, **_: Any) -> None:
            """Ask for a score up to the threshold, and not for the larger of two."""
            margin = np.log(subject.threshold / (1 - subject.threshold))
            self.add_garbage(self.Add(self.function[0, 1] <= int(margin * self.score_scale)))

        def add_objective(self, x: np.ndarray, *, norm: int = 1) -> None:
            """Minimise our cost of at most MOST_CHANGES changes that the levers allow."""
            del norm
            self.chosen, costs, changes = {}, [], []
            for value, (name, variable) in zip(x.tolist(), self.mapper.items(), strict=True):
                place, levels = variable.xget(), variable.levels
                own = int(np.searchsorted(levels, value)) - 1
                numbers = _nearest_in(levels, value, own, levers.get(name))
                allowed = [i for i, number in enumerate(numbers) if number is not None]
                self.add_garbage(self.AddAllowedAssignments([place], [[i] for i in allowed]))
                self.chosen[name] = (place, numbers)
                if len(allowed) == 1:
                    continue
                lever = levers[name]
                cost = [
                    0 if n is None else round(float(lever.costs(value, np.array([n]))[0]) * _OCEAN_UNIT)
                    for n in numbers
                ]
                spent, changed = self.NewIntVar(0, max(cost), ""), self.NewBoolVar("")
                self.add_garbage(
                    self.AddElement(place, cost, spent),
                    self.Add(place == own).OnlyEnforceIf(changed.Not()),
                )
                costs.append(spent)
                changes.append(changed)
            self.add_garbage(self.Add(sum(changes) <= MOST_CHANGES))
            self.Minimize(sum(costs))

    explainer = Explainer(subject.model, mapper=mapper)

    def search(row: "pd.DataFrame") -> tuple["pd.DataFrame", bool]:
        x = row.to_numpy(np.float64)[0]
        if explainer.explain(x, y=0, norm=1, max_time=seconds, num_workers=1) is None:
            return row[:0], explainer.Status == "INFEASIBLE"
        solver = explainer.solver
        found = {name: numbers[solver.Value(place)] for name, (place, numbers) in explainer.chosen.items()}
        return after(row, found), explainer.Status == "OPTIMAL"

    return search


_OCEAN_UNIT = 1e8  # OCEAN counts in whole numbers


def _nearest_in(levels: np.ndarray, value: float, own: int, lever: Lever | None) -> list[float | None]:
    """Return the number nearest to a value in each interval (levels[i], levels[i + 1]], None without any."""
    numbers: list[float | None] = [None] * (len(levels) - 1)
    numbers[own] = value
    if lever is None:
        return numbers
    above = np.nextafter(levels.astype(np.float32), np.float32(np.inf)).astype(np.float64)
    (low, high), step = lever.span(value), lever.step
    for i in range(len(numbers)):
        number = float(above[i] if i > own else levels[i + 1])
        if step:
            number = float((np.ceil if i > own else np.floor)(number / step) * step)
        if i != own and low <= number <= high and levels[i] < number <= levels[i + 1]:
            numbers[i] = number
    return numbers


PEERS: dict[str, Callable[[Subject, "RecourseFinder", int], Peer]] = {
    DICE: dice,
    TREECF: treecf,
    OCEAN: ocean,
}
OF_TREES = (TREECF, OCEAN)


def _lever(finder: "RecourseFinder", name: str) -> Lever:
    return next(lever for lever in finder.features if lever.name == name)


def cost_of(
    finder: "RecourseFinder", row: "pd.DataFrame", changed: "pd.Series[Any]"
) -> tuple[float, int, bool]:
    """Return the cost of a changed row by our rules, its changes, and whether a frozen feature changes."""
    cost, levers = 0.0, {lever.name: lever for lever in finder.actionable}
    different = [name for name in row if changed[name] != row[name].iloc[0]]
    for name in different:
        if name in levers:
            lever, start = levers[name], row[name].iloc[0]
            is_number = lever.is_number
            cost += (
                float(lever.costs(start, np.array([changed[name]]))[0]) if is_number else lever.action.cost
            )
    return cost, len(different), any(name not in levers for name in different)


# -- a table -------------------------------------------------------------------------------------------


def lines(
    subject: Subject, rows: int, peer_rows: int, peers: Sequence[str], seconds: int, tell: Callable[..., None]
) -> Iterator[str]:
    """Yield the lines of one model."""
    tell(f"{subject.name}: compiling", 0, 1)
    compiled = subject.compiled()
    finder = recourse_finder(compiled.manifest, compiled.source)
    ours = list[Ours]()
    for found in our_recourse(subject, compiled, finder, rows):
        ours.append(found)
        tell(f"{subject.name}: ours", len(ours), rows)
    wrong = frozen = planned = 0
    for found in ours:
        for plan in found.plans:
            planned += 1
            wrong += bool(subject.scores(after(found.row, plan.changes))[0] > subject.threshold)
            frozen += not {*plan.changes} <= {*subject.actionable}
    scans = np.array([scan_faults(subject, finder, found) for found in ours]).sum(axis=0)
    with_plan = [found for found in ours if found.plans]
    certified = sum(found.certified for found in ours)
    flip_ms, plans_ms = (np.median([getattr(f, name) for f in ours]) for name in ("flip_ms", "plans_ms"))
    features = f"{len(subject.actionable)} of {subject.rows.shape[1]} features"
    yield f"{subject.name}: {len(ours)} declines, {features}"
    yield (
        f"  ours      plans for {len(with_plan)} ({certified} certified to have none), {planned} plans: "
        f"{wrong} wrong, {frozen} frozen; median cost "
        f"{np.median([found.plans[0].cost for found in with_plan] or [np.nan]):.3g}; "
        f"flip points {flip_ms:.2f} ms, plans {plans_ms:.1f} ms"
    )
    yield f"  scan      {scans[0]} features flip the decision alone; nearer than ours: {scans[1]}"
    for name in peers:
        if (name in OF_TREES and not subject.is_tree) or (name == OCEAN and subject.name != SMALL):
            continue
        if find_spec(MODULES[name]) is None:
            yield f"  {name:9} left out: it is not installed"
            continue
        with quietly():
            peer = PEERS[name](subject, finder, seconds)
        compared = list[_Compared]()
        for found in ours[:peer_rows]:
            compared.append(_compare(subject, finder, peer, found))
            tell(f"{subject.name}: {name}", len(compared), peer_rows)
        yield f"  {name:9} {_summary(compared)}"


@dataclass(frozen=True)
class _Compared:
    """A peer's cheapest plan beside ours; costs are inf if there is none."""

    ours: float
    peer: float
    changes: int
    wrong: int
    frozen: int
    proved: bool
    ms: float


def _compare(subject: Subject, finder: "RecourseFinder", peer: Peer, found: Ours) -> _Compared:
    with warnings.catch_warnings(), quietly():
        warnings.simplefilter("ignore")
        began = time.perf_counter()
        changed, proved = peer(found.row)
        ms = 1e3 * (time.perf_counter() - began)
    best, wrong, frozen = (np.inf, 0), 0, 0
    for _, row in changed.iterrows():
        cost, changes, is_frozen = cost_of(finder, found.row, row)
        frame = found.row.assign(**row.to_dict())
        is_wrong = bool(subject.scores(frame)[0] > subject.threshold)
        wrong, frozen = wrong + is_wrong, frozen + is_frozen
        if not (is_wrong or is_frozen):
            best = min(best, (cost, changes))
    return _Compared(found.plans[0].cost if found.plans else np.inf, *best, wrong, frozen, proved, ms)


def _summary(compared: Sequence[_Compared]) -> str:
    there = [each for each in compared if np.isfinite(each.peer)]
    cheaper = sum(each.peer < each.ours * (1 - 1e-6) for each in there if each.changes <= MOST_CHANGES)
    proved = [each for each in there if each.proved and each.changes <= MOST_CHANGES]
    near = sum(each.ours <= NEAR * each.peer + 1e-9 for each in proved)
    costs = [np.median([getattr(each, name) for each in there] or [np.nan]) for name in ("peer", "ours")]
    return (
        f"plans for {len(there)} of {len(compared)}; {sum(each.wrong for each in compared)} wrong, "
        f"{sum(each.frozen for each in compared)} frozen; median cost {costs[0]:.3g} (ours {costs[1]:.3g}); "
        f"cheaper than ours: {cheaper}; proved: {len(proved)}, ours within 15%: {near}; "
        f"{np.median([each.ms for each in compared] or [np.nan]):.0f} ms"
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Print lines for each model."""
    parser = parser_of(__doc__, SUBJECTS, many=True)
    add = parser.add_argument
    add("--rows", type=positive, default=300, help="declined applicants of each model (300)")
    add("--peer-rows", type=positive, default=20, help="of them for each peer (20)")
    add("--peers", type=names(tuple(PEERS)), default=list(PEERS), help=f"by commas: {', '.join(PEERS)} (all)")
    add("--seconds", type=positive, default=5, help="for each row of an exact search (5)")
    options = parser.parse_args(argv)
    with reporting_errors(), progress_bar() as tell:
        for name in options.models or SUBJECTS:
            subject = SUBJECTS[name]()
            for line in lines(subject, options.rows, options.peer_rows, options.peers, options.seconds, tell):
                print(line, flush=True)


if __name__ == "__main__":
    main()
