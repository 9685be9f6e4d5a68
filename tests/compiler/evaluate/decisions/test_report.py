"""`rationale decisions report` against counts by hand: a linear model's attributions are w·(x − mean r)."""

import csv
import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from rationale import Comparisons, DeepShap, InvalidOptionError, compile_model
from rationale.errors import RepositoryError
from rationale.evaluate.decisions import measures
from rationale.evaluate.decisions.decided import decide_file
from rationale.evaluate.decisions.measures import (
    NO_COMPARISONS,
    NO_REFERENCES,
    NOT_RECORDED,
    SMALL,
    DecisionReport,
    report,
)
from rationale.evaluate.decisions.moved import ScoreMovement
from rationale.evaluate.decisions.report import tables
from rationale.references.draws import bootstrap_samples
from rationale_service.cli.main import app
from tests.compiler.decisions.linear import (
    BANKRUPT,
    BY_SCORE,
    DRAWS,
    EVERYBODY,
    MODEL,
    NEAR,
    PAID,
    PROFILE,
    REFERRED,
    SCORES,
    SEED,
    SEX,
    WEIGHTS,
    N,
    X,
    codes,
)
from tests.compiler.models import NAMES, contents, parsed
from tests.compiler.pictures.pages import Page


def write(
    folder: Path, near: np.ndarray = NEAR, profile: Any = PROFILE, weights: Any = None, **comparisons: Any
) -> None:
    """Entry m, and the tables data.csv and near.csv."""
    alternatives = Comparisons(**comparisons) if comparisons else None
    compiled = compile_model(
        MODEL, DeepShap(near, weights), feature_names=NAMES, decision=profile, comparisons=alternatives
    )
    compiled.write(folder / "model_repository", "m")
    np.savetxt(folder / "near.csv", near, delimiter=",", header=",".join(NAMES), comments="")
    with (folder / "data.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["sex", *NAMES, "bankruptcies", "paid"])
        for i, row in enumerate(X):
            writer.writerow([SEX[i], *map(repr, row.tolist()), int(BANKRUPT[i]), PAID[i]])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    write(folder, baselines={"all_applicants": DeepShap(EVERYBODY)}, draws=DRAWS, seed=SEED)
    return folder


@pytest.fixture(scope="module")
def statistics(folder: Path) -> DecisionReport:
    return report(
        folder / "model_repository",
        "m",
        folder / "data.csv",
        label="paid",
        groups=["sex"],
        references=folder / "near.csv",
    )


def test_outcomes(statistics: DecisionReport) -> None:
    declined = int(BANKRUPT.sum()) + len(BY_SCORE)
    assert statistics.outcomes == {
        "approve": N - declined - int(REFERRED.sum()),
        "refer": int(REFERRED.sum()),
        "decline": declined,
    }
    assert (statistics.knocked_out, statistics.by_score, statistics.without_reasons) == (
        BANKRUPT.sum(),
        len(BY_SCORE),
        {},
    )
    assert len(BY_SCORE) > 20
    assert statistics.gaps.largest is not None
    assert statistics.gaps.largest <= statistics.gaps.tolerance
    assert statistics.gaps.above == 0


def test_how_often_each_reason_comes_and_stays(statistics: DecisionReport) -> None:
    drawn = bootstrap_samples(NEAR, None, DRAWS, SEED)
    codes_of = {i: codes(X[i], NEAR) for i in BY_SCORE}
    other_codes = {i: [codes(X[i], references) for references in (EVERYBODY, *drawn)] for i in BY_SCORE}
    reasons = {reason.code: reason for reason in statistics.reasons}
    counts = [reason.declines for reason in statistics.reasons]
    assert counts == sorted(counts, reverse=True)
    for code in ("R1", "R2", "R3"):
        of_code = [i for i in BY_SCORE if code in codes_of[i]]
        reason = reasons[code]
        assert (reason.declines, reason.first) == (
            len(of_code),
            sum(codes_of[i][0] == code for i in BY_SCORE),
        )
        assert reason.survival == {
            "all_applicants": pytest.approx(np.mean([code in other_codes[i][0] for i in of_code])),
            "draws": pytest.approx(np.mean([[code in each for each in other_codes[i][1:]] for i in of_code])),
        }
    bankrupt = reasons["R9"]
    assert (bankrupt.declines, bankrupt.first, bankrupt.share) == (BANKRUPT.sum(), BANKRUPT.sum(), None)
    assert bankrupt.survival == {}
    same = np.array([[{*codes_of[i]} == {*each} for each in other_codes[i]] for i in BY_SCORE])
    order = np.array([[codes_of[i] == each for each in other_codes[i]] for i in BY_SCORE])
    assert not same.all()
    by_name = {agreement.name: agreement for agreement in statistics.agreements}
    for name, columns in {"all_applicants": [0], "draws": [1, 2, 3]}.items():
        assert by_name[name].same_set == pytest.approx(same[:, columns].mean())
        assert by_name[name].same_order == pytest.approx(order[:, columns].mean())
        assert by_name[name].changed == pytest.approx((~same[:, columns]).any(1).mean())


def test_groups_and_label(statistics: DecisionReport) -> None:
    approved = (SCORES <= 0.8) & ~REFERRED & ~BANKRUPT
    rates = {group.value: group for group in statistics.groups}
    assert [group.value for group in statistics.groups] == ["a", "b", None]
    sizes = {value: int(np.equal(SEX, value or "").sum()) for value in rates}
    assert {value: rate.rows for value, rate in rates.items()} == sizes
    assert {value for value, rate in rates.items() if rate.small} == {None}
    highest = max(approved[value == SEX].mean() for value in ("a", "b"))  # the small one is no measure
    for value, rate in rates.items():
        expected = approved[(value or "") == SEX].mean()
        assert (rate.approved, rate.ratio) == (pytest.approx(expected), pytest.approx(expected / highest))
        assert rate.approved + rate.referred + rate.declined == pytest.approx(1)
    assert statistics.label is not None
    assert (statistics.label.positive, statistics.label.rate) == (2.0, pytest.approx((PAID == 2).mean()))
    assert statistics.label.by_outcome["refer"] == pytest.approx((PAID[REFERRED] == 2).mean())
    assert statistics.notes == (NOT_RECORDED, "fewer than 30 rows: sex = empty")


@pytest.mark.parametrize("weights", [None, [1.0, 0.0, 0.0]], ids=["one", "one with weight"])
def test_moved_features_change_the_score_by_their_attributions(
    tmp_path: Path, weights: list[float] | None
) -> None:
    """Of one reference, and with all others as the only choice, nothing is left to chance."""
    profile = (
        PROFILE
        | {
            "max_reasons": 1,
            "output_range": [-100, 100],  # one reference shows none
            "features": {},
            "groups": {
                "one": {"members": NAMES[:2], "reason": "R1"},
                "two": {"members": NAMES[2:], "reason": "R2"},
            },
            "reasons": {"R1": "One", "R2": "Two", "R9": "Bankruptcy"},
        }
    )
    near = NEAR[: len(weights or [1.0])]
    write(tmp_path, near, profile, weights=weights)
    np.savez(tmp_path / "near.npz", x=near, **({} if weights is None else {"reference_weights": weights}))
    statistics = report(
        tmp_path / "model_repository", "m", tmp_path / "data.csv", references=tmp_path / "near.npz"
    )
    each = WEIGHTS * (X[BY_SCORE] - NEAR[0])
    sums = np.stack([each[:, :2].sum(1), each[:, 2:].sum(1)], axis=1)
    named, unnamed = sums.max(1), sums.min(1)
    assert isinstance(statistics.moved, ScoreMovement)
    means = [statistics.moved.named, statistics.moved.others]
    np.testing.assert_allclose(means, [np.mean(named), np.mean(unnamed)], rtol=1e-4, atol=1e-5)
    assert statistics.moved.declines == len(BY_SCORE)
    assert statistics.moved.larger == 1
    declined = max(PROFILE["refer"])  # above the band: in it, a person decides
    assert statistics.moved.passing == pytest.approx((SCORES[BY_SCORE] - named <= declined).mean())
    assert statistics.moved.passing_others == pytest.approx((SCORES[BY_SCORE] - unnamed <= declined).mean())
    assert statistics.notes == (NOT_RECORDED, NO_COMPARISONS)


@pytest.mark.parametrize(
    ("gaps", "above"),
    [([], 0), ([None, 0.5], 0), ([0.5, -0.5], 0), ([0.75, -0.75, 0.5], 2), ([np.nan, 0.25, np.inf], 2)],
)
def test_gaps_above_the_tolerance_are_counted(
    gaps: list[float | None], above: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of exactly the tolerance is not above it; what is no number is."""
    monkeypatch.setattr(measures, "profile_of", lambda _: SimpleNamespace(tolerance=0.5))
    rows: Any = [SimpleNamespace(explained=SimpleNamespace(gap=gap)) for gap in gaps]
    file: Any = SimpleNamespace(compiled=SimpleNamespace(manifest=None), rows=rows)
    assert measures._gaps(file).above == above


def test_a_move_to_exactly_the_threshold_passes(tmp_path: Path) -> None:
    """0.2 of float32 is 0.20000000298, and equals a threshold of 0.2."""
    model = parsed("g (float[N, 2] x) => (float[N, 1] y) { y = MatMul (x, w) }", {"w": np.ones((2, 1), "f4")})
    profile = {
        "output": "y",
        "threshold": 0.2,
        "adverse": "above",
        "output_range": [-9, 9],
        "features": {"a": {"reason": "A"}, "b": {"reason": "B"}},
        "reasons": {"A": "A", "B": "B"},
    }
    near = np.array([[0.2, 0]], np.float32)
    compiled = compile_model(model, DeepShap(near), feature_names=["a", "b"], decision=profile)
    compiled.write(tmp_path / "models", "m")
    (tmp_path / "near.csv").write_text("a,b\n0.2,0\n")
    (tmp_path / "data.csv").write_text("a,b\n5,0\n")
    statistics = report(tmp_path / "models", "m", tmp_path / "data.csv", references=tmp_path / "near.csv")
    assert isinstance(statistics.moved, ScoreMovement)
    assert (statistics.moved.passing, statistics.moved.passing_others) == (1, 0)


def test_rows_without_reasons_are_counted(tmp_path: Path) -> None:
    write(tmp_path, profile=PROFILE | {"never_disclose": ["years"], "knock_outs": []})
    statistics = report(tmp_path / "model_repository", "m", tmp_path / "data.csv")
    rows = [i for i in np.flatnonzero(SCORES >= 0.5) if "R3" in codes(X[i], NEAR)]
    ((cause, count),) = statistics.without_reasons.items()
    assert "years is a principal reason" in cause
    assert count == len(rows) > 5
    assert statistics.outcomes["decline"] == (SCORES > 0.8).sum()
    assert statistics.notes == (NOT_RECORDED, NO_COMPARISONS, NO_REFERENCES)


# -- the command ---------------------------------------------------------------------------------------


def test_what_is_printed_of_other_references(statistics: DecisionReport) -> None:
    """A row for each, the draws as one; and a row for each outcome, reason and group."""
    console = Console(width=200, record=True, file=io.StringIO())
    for table in tables(statistics):
        console.print(table)
    lines = [line.split() for line in console.export_text().splitlines()]
    for agreement in statistics.agreements:
        name = ["all_applicants"] if agreement.name == "all_applicants" else [str(DRAWS), "draws,", "mean"]
        (line,) = (line for line in lines if line[: len(name)] == name)
        shares = [
            f"{100 * share:.1f}%" for share in (agreement.same_set, agreement.same_order, agreement.changed)
        ]
        assert line[len(name) :][:3] == shares
    for outcome, rows in statistics.outcomes.items():
        assert any(line[:2] == [outcome, str(rows)] for line in lines)
    for reason in statistics.reasons:
        assert any(line[:1] == [reason.code] and str(reason.declines) in line for line in lines)
    for group in statistics.groups[:2]:
        assert any(line[:3] == ["sex", "=", str(group.value)] for line in lines)


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["decisions", "report", *arguments])


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.usefixtures("here")
def test_the_only_model_that_decides_needs_no_name(tmp_path: Path) -> None:
    named, unnamed = call("data.csv", "m"), call("data.csv")
    assert named.exit_code == 0
    assert named.output == unnamed.output
    nothing = call("data.csv", "--repository", str(tmp_path))
    assert nothing.exit_code == 2
    assert "--decision" in nothing.output


@pytest.mark.usefixtures("here")
def test_the_files(statistics: DecisionReport, tmp_path: Path) -> None:
    arguments = ["data.csv", "m", "--group", "sex", "--label", "paid", "--references", "near.csv"]
    for out in ("one", "two"):
        result = call(*arguments, "--out", str(tmp_path / out))
        assert result.exit_code == 0, result.output
        assert f"groups.csv to {tmp_path / out}\n" in result.stdout
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    files = ["decisions.csv", "groups.csv", "reasons.csv", "report.html", "report.json"]
    assert sorted(contents(tmp_path / "one")) == files
    page = Page((tmp_path / "one" / "report.html").read_text("utf-8"))
    titles = [seen.text for seen in page.of("figcaption")]
    assert [title.partition(" %")[0] for title in titles[:3]] == [
        *("Principal reasons", "The same reasons by other references", "Approvals by protected group"),
    ]
    assert len(titles[3:]) == len(page.of("table")) == 6
    assert "sex = empty (small)" in page.of("table")[4].text
    whole = json.loads((tmp_path / "one" / "report.json").read_text())
    assert whole["outcomes"] == statistics.outcomes
    assert whole["digests"]["profile"] == statistics.manifest.decision.digest
    assert [reason["code"] for reason in whole["reasons"]] == [one.code for one in statistics.reasons]
    records = list(csv.DictReader((tmp_path / "one" / "decisions.csv").read_text().splitlines()))
    assert len(records) == N
    for i in BY_SCORE:
        row_codes = codes(X[i], NEAR)
        assert [records[i][f"reason_{place}"] for place in range(1, len(row_codes) + 1)] == row_codes
        assert records[i]["reasons by all_applicants"].split() == codes(X[i], EVERYBODY)
        assert float(records[i]["score"]) == pytest.approx(SCORES[i], abs=1e-5)
    assert "Principal reasons of" in result.stdout
    assert "sex = empty (small)" in result.stdout


def test_groups_have_the_profiles_words_and_numbers_are_grouped(tmp_path: Path) -> None:
    model = parsed(
        "g (float[N, 2] x) => (float[N, 1] y) { y = MatMul (x, w) }", {"w": np.ones((2, 1), np.float32)}
    )
    rows = np.stack([np.linspace(-1, 1, 1200), np.arange(1200) % 3], axis=1).astype(np.float32)
    features = {
        "income": {"reason": "I"},
        "sex": {"reason": "S", "title": "Sex", "categories": {"0": "female", "1": "male"}, "open": True},
    }
    profile = {"output": "y", "threshold": 0.5, "adverse": "above", "features": features}
    profile["reasons"] = {"I": "Income", "S": "Sex"}
    compiled = compile_model(model, DeepShap(rows[:9]), feature_names=["income", "sex"], decision=profile)
    compiled.write(tmp_path, "m")
    np.savetxt(tmp_path / "rows.csv", rows, delimiter=",", header="income,sex", comments="")
    arguments = [str(tmp_path / "rows.csv"), "m", "--repository", str(tmp_path), "--group", "sex"]
    result = call(*arguments, "--out", str(tmp_path / "out"))
    assert result.exit_code == 0, result.output
    page = Page((tmp_path / "out" / "report.html").read_text("utf-8"))
    names = [name for name, _ in page.rows()[-3:]]
    assert names == ["Sex = female", "Sex = male", "Sex = 2"]
    assert [name for name in names if name in page.of("table")[-1].text] == names
    assert "Decisions: 1,200 rows, threshold 0.5" in [seen.text for seen in page.of("figcaption")]
    assert [seen.text for seen in page.of("th", "number")][:2] == ["rows", "share"]
    whole = json.loads((tmp_path / "out" / "report.json").read_text())
    assert [group["value"] for group in whole["groups"]] == [0, 1, 2]  # as the data has them


@pytest.mark.usefixtures("here")
def test_decisions_csv_has_the_rows_ids_groups_and_labels(tmp_path: Path) -> None:
    records = list(csv.DictReader(Path("data.csv").read_text().splitlines()))
    for i, row in enumerate(records):
        row |= {"application": f"00{i}", "row": f"r{i}"}
    with (tmp_path / "ids.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, records[0])
        writer.writeheader()
        writer.writerows(records)
    words = (str(tmp_path / "ids.csv"), "m", "--keep", "application,row", "--group", "sex", "--label", "paid")
    result = call(*words, "--out", str(tmp_path / "out"))
    assert result.exit_code == 0, result.output
    records = list(csv.DictReader((tmp_path / "out" / "decisions.csv").read_text().splitlines()))
    assert [row["row"] for row in records] == [str(i) for i in range(N)]
    assert [row["row of the data"] for row in records] == [f"r{i}" for i in range(N)]
    for name in ("application", "sex", "paid"):
        assert [row[name] for row in records] == [row[name] for row in records]


REFUSED = {
    "no such entry": (("data.csv", "n"), "n_explain: there is no such entry"),
    "no such column": (("data.csv", "m", "--group", "race"), "no column 'race'"),
    "too many groups": (("data.csv", "m", "--group", "income"), "has 90 values; give a column of at most 20"),
    "no label": (("data.csv", "m", "--label", "sex"), "a label has two, in every row"),
    "other references": (("data.csv", "m", "--references", "data.csv"), "not the references that 'm'"),
    "no table": (("data.npy", "m"), "bankruptcies need a table: give the rows as .csv or .parquet"),
    "no knock-outs": (("near.csv", "m"), "no column 'bankruptcies'"),
    "no file": (("no.csv", "m"), "no.csv: cannot be read"),
    "a file for a folder": (("data.csv", "m", "--out", "data.csv"), "data.csv is not a folder"),
    "a negative seed": (("data.csv", "m", "--seed", "-1"), "--seed"),
}


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    np.save("data.npy", X)
    arguments, words = REFUSED[name]
    result = call(*arguments)
    assert result.exit_code == 2, result.output
    assert words in " ".join(result.stderr.split())
    assert result.stdout == ""


def test_an_entry_without_a_profile_and_one_whose_comparison_is_gone(tmp_path: Path) -> None:
    repository = tmp_path / "model_repository"
    write(tmp_path, draws=1)
    entry = next(repository.glob("m_explain_*"))
    entry.rename(tmp_path / "gone")
    with pytest.raises(RepositoryError, match=f"{entry.name}: the comparison 'draw 1' is missing"):
        decide_file(repository, "m", tmp_path / "data.csv", (), lambda *_: None)
    compile_model(MODEL, DeepShap(NEAR), feature_names=NAMES).write(repository, "m")
    with pytest.raises(InvalidOptionError, match=r"'m'.*--decision"):
        decide_file(repository, "m", tmp_path / "data.csv", (), lambda *_: None)


def test_a_row_that_the_model_has_no_answer_to(tmp_path: Path) -> None:
    write(tmp_path, profile=PROFILE | {"knock_outs": []})
    np.savez(tmp_path / "huge.npz", x=np.array([X[0], [3e38, 0, 0, 3e38, 0]]))
    with pytest.raises(InvalidOptionError, match=r"row 2 .*\b(inf|nan)\b"):
        decide_file(tmp_path / "model_repository", "m", tmp_path / "huge.npz", (), lambda *_: None)


def test_rows_that_the_profile_does_not_take(tmp_path: Path) -> None:
    profile = {**PROFILE, "features": {**PROFILE["features"], "age": {"reason": "R1", "most": 1.0}}}
    beyond = np.flatnonzero(X[:, 0] > 1)
    write(tmp_path, profile=profile)
    message = (
        f"{len(beyond)} of {N} rows of the file .*: in row {beyond[0] + 1} feature 'age' is more than .* 1: "
    )
    with pytest.raises(InvalidOptionError, match=message):
        report(tmp_path / "model_repository", "m", tmp_path / "data.csv")
    write(tmp_path, profile={**profile, "outside": "warn"})
    report(tmp_path / "model_repository", "m", tmp_path / "data.csv")


@pytest.mark.parametrize(("count", "is_small"), [(SMALL - 1, True), (SMALL, False), (SMALL + 1, False)])
def test_a_group_of_exactly_so_many_rows_is_not_small(count: int, is_small: bool) -> None:
    """And its rate of approvals is a measure for the others."""
    cells = ["a"] * count + ["b"] * (2 * SMALL)
    outcomes = ["approve"] * count + ["approve", "decline"] * SMALL
    rows = [SimpleNamespace(outcome=outcome) for outcome in outcomes]
    file: Any = SimpleNamespace(further={"sex": cells}, rows=rows)
    a, b = measures._rates("sex", file)
    assert (a.small, b.small) == (is_small, False)
    assert (a.ratio, b.ratio) == ((2.0, 1.0) if is_small else (1.0, 0.5))
