"""Fitted models from files: what the command makes of them, and what it refuses."""

import warnings
from pathlib import Path
from typing import Any

import joblib
import lightgbm as lgb
import numpy as np
import pytest
import xgboost as xgb
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import GradientBoostingClassifier, HistGradientBoostingClassifier
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from typer.testing import CliRunner

from rationale import Gradient, InvalidOptionError, Manifest, TreeShap, compile_model
from rationale.cli.compile import app
from tests.compiler.conversion.data import APPLICANTS, FEATURES, LOANS, REFERENCES, TWO, K, compared_rows
from tests.tolerances import PARITY_32

SMALL: dict[str, Any] = {"n_estimators": 4, "max_depth": 3}


def saved(folder: Path) -> dict[str, Any]:
    """One model for each kind of file, by the file's name."""
    models = {
        "model.json": xgb.XGBClassifier(**SMALL),
        "model.ubj": xgb.XGBClassifier(**SMALL),
        "model.joblib": HistGradientBoostingClassifier(max_iter=4, max_depth=3),
    }
    table = LOANS.set_axis([name.replace(" ", "_") for name in FEATURES], axis=1)
    models["model.txt"] = lgb.LGBMClassifier(verbose=-1, **SMALL)
    for name, model in models.items():
        model.fit(table if name.endswith("txt") else LOANS, TWO)
    for name in ("model.json", "model.ubj"):
        models[name].save_model(folder / name)
    models["model.txt"].booster_.save_model(folder / "model.txt")
    joblib.dump(models["model.joblib"], folder / "model.joblib")
    return models


def call(*arguments: object) -> tuple[int, str]:
    outcome = CliRunner().invoke(app, [str(a) for a in arguments])
    return outcome.exit_code, outcome.output


def test_each_kind_of_file(tmp_path: Path) -> None:
    for name, model in saved(tmp_path).items():
        table = REFERENCES.assign(home="rent")[["home", *FEATURES[::-1]]].fillna(0)
        applicants = APPLICANTS[FEATURES].fillna(0)
        if name.endswith("txt"):
            table.columns, applicants.columns = (
                [c.replace(" ", "_") for c in t.columns] for t in (table, applicants)
            )
        table.to_csv(tmp_path / "r.csv", index=False)
        applicants.to_csv(tmp_path / "x.csv", index=False)
        repository = ("--repository", tmp_path / "repository")
        code, output = call(
            *("compile", tmp_path / name, "--name", "m", "--method", "treeshap", *repository),
            *("--references", tmp_path / "r.csv", *(["--allow-pickle"] if "joblib" in name else [])),
        )
        assert code == 0, output
        assert output.startswith("parity: ")
        manifest = Manifest.read(tmp_path / "repository" / "m_explain" / "explanation.json")
        assert manifest.explained[0].feature_names == tuple(applicants.columns)
        assert manifest.parity is not None
        assert compared_rows(manifest.parity, "references") == K
        assert manifest.parity.relative < PARITY_32
        answer = ("explain", "m", "--input", tmp_path / "x.csv", "--save", tmp_path / "answer.npz")
        code, output = call(*answer, *repository)
        assert code == 0, output
        with np.load(tmp_path / "answer.npz") as arrays:
            expected = model.predict_proba(applicants)
            assert np.abs(arrays["probabilities"] - expected).max() <= PARITY_32
        assert call("check", "m", *repository)[0] == 0


@pytest.mark.parametrize("method", ["treeshap", "auto"])
def test_a_pipeline_of_words_and_holes(method: str, tmp_path: Path) -> None:
    """Raw columns from a file of references to the drawn reasons, without a word about preprocessing."""
    table = LOANS[["age", "income now"]].assign(home=np.resize(["own", "rent", "with parents"], len(LOANS)))
    numbers = ("numbers", SimpleImputer(), ["age", "income now"])
    words = ("words", OneHotEncoder(), ["home"])
    pipeline = make_pipeline(
        ColumnTransformer([numbers, words]), GradientBoostingClassifier(n_estimators=4, max_depth=3)
    ).fit(table, TWO)
    joblib.dump(pipeline, tmp_path / "model.joblib")
    table[:K].to_csv(tmp_path / "r.csv", index=False)
    table[:2].to_csv(tmp_path / "x.csv", index=False)
    assert table[:K].isna().any(axis=None)
    repository = ("--repository", tmp_path / "repository")
    code, output = call(
        *("compile", tmp_path / "model.joblib", "--allow-pickle", "--name", "m", "--method", method),
        *(*repository, "--references", tmp_path / "r.csv"),
    )
    assert code == 0, output
    answer = ("explain", "m", "--input", tmp_path / "x.csv", *repository)
    for name in ("answer.npz", "reasons.svg"):
        code, output = call(*answer, "--save", tmp_path / name)
        assert code == 0, output
    with np.load(tmp_path / "answer.npz") as arrays:
        total = sum(arrays[f"{name}_attributions"].sum(axis=(1, 2)) for name in ("age", "income now", "home"))
        expected = (arrays["explained_value"] - arrays["base_value"])[:, 0]
        np.testing.assert_allclose(total, expected, atol=1e-5)
    assert "home = own" in (tmp_path / "reasons.svg").read_text("utf-8")


def test_python_reads_the_files_of_boosters(tmp_path: Path) -> None:
    files = {name: model for name, model in saved(tmp_path).items() if not name.endswith("joblib")}
    assert [*files] == ["model.json", "model.ubj", "model.txt"]
    for name, model in files.items():
        arrays = compile_model(tmp_path / name, TreeShap(REFERENCES.to_numpy())).explain(
            APPLICANTS.to_numpy()
        )
        with warnings.catch_warnings(action="ignore"):  # LightGBM's of names
            expected = model.predict_proba(APPLICANTS.to_numpy())
        assert np.abs(arrays["probabilities"] - expected).max() <= PARITY_32


def test_leave_is_given_once_for_every_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path)
    REFERENCES.to_csv(tmp_path / "r.csv", index=False)
    options = ("--references", tmp_path / "r.csv", "--repository", tmp_path / "repository")
    monkeypatch.setenv("RATIONALE_ALLOW_PICKLE", "1")
    code, output = call("compile", tmp_path / "model.joblib", "--name", "m", "--method", "treeshap", *options)
    assert code == 0, output


def test_a_summary_of_many_columns_is_short(tmp_path: Path) -> None:
    columns = ColumnTransformer([("numbers", SimpleImputer(), FEATURES)])
    pipeline = make_pipeline(columns, GradientBoostingClassifier(n_estimators=4, max_depth=3)).fit(LOANS, TWO)
    joblib.dump(pipeline, tmp_path / "model.joblib")
    REFERENCES.to_csv(tmp_path / "r.csv", index=False)
    options = ("--references", tmp_path / "r.csv", "--repository", tmp_path / "repository", "--allow-pickle")
    code, output = call("compile", tmp_path / "model.joblib", "--name", "m", "--method", "treeshap", *options)
    assert code == 0, output
    assert "by age, income now, debt and 2 more, treeshap" in output
    assert all(line == line.rstrip() for line in output.splitlines())


class Evil:
    def __reduce__(self) -> Any:
        return Path.touch, (Path("touched"),)


def test_a_pickle_is_not_read_without_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("m.pkl", "m.joblib", "m.PICKLE"):
        joblib.dump(Evil(), name)
        code, output = call("compile", name, "--name", "m", "--method", "gradient")
        assert code == 2
        assert name in output
        assert "--allow-pickle" in output
        with pytest.raises(InvalidOptionError, match=r"m\.\w+: .*--allow-pickle"):
            compile_model(name, Gradient())
        assert not Path("touched").exists()


@pytest.mark.parametrize("name", ["m.json", "m.ubj", "m.txt", "m.pkl", "m.joblib"])
def test_a_file_that_holds_none(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    command = ("compile", tmp_path / name, "--name", "m", "--method", "gradient", "--allow-pickle")
    code, output = call(*command)
    assert (code, "no such file" in output) == (2, True), output
    (tmp_path / name).write_bytes(b"\x80garbage{")
    code, output = call(*command)
    assert (code, "cannot be read" in output) == (2, True), output
    capfd.readouterr()


def test_a_pickle_of_something_else(tmp_path: Path) -> None:
    joblib.dump({"weights": [1, 2]}, tmp_path / "m.pkl")
    code, output = call(
        "compile", tmp_path / "m.pkl", "--name", "m", "--method", "gradient", "--allow-pickle"
    )
    assert (code, "dict is not a model" in output) == (2, True), output
