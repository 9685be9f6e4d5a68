"""The flavour of MLflow, with MLflow itself: logged, loaded, and served over HTTP."""

from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
import yaml
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression

import rationale
from rationale import InvalidOptionError, RepositoryError
from rationale import mlflow as flavor

# MLflow's own, at its own modules.
pytestmark = pytest.mark.filterwarnings("ignore::Warning:mlflow", "ignore::ResourceWarning")


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    x, _ = make_classification(60, 3, n_informative=3, n_redundant=0, random_state=0)
    return pd.DataFrame(x, columns=["age", "income", "debt"])


@pytest.fixture(scope="module")
def compiled(rows: pd.DataFrame) -> rationale.Compiled:
    model = LogisticRegression().fit(rows, rows["age"] > rows["debt"])
    return rationale.compile_model(model, rationale.DeepShap(rows[:20]))


@pytest.fixture(scope="module")
def uri(compiled: rationale.Compiled, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Log the model in a run of its own store."""
    folder = tmp_path_factory.mktemp("mlflow")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        mlflow.set_tracking_uri(f"sqlite:///{folder}/store.db")
        with mlflow.start_run():
            yield flavor.log_model(compiled, "loans").model_uri
        mlflow.set_tracking_uri(None)


def test_a_logged_model_answers_as_before(compiled: rationale.Compiled, rows: pd.DataFrame, uri: str) -> None:
    loaded = flavor.load_model(uri)
    before, after = compiled.explain(rows), loaded.explain(rows)
    assert all(np.array_equal(before[name], after[name]) for name in before)
    assert loaded.manifest.digests == compiled.manifest.digests


def test_predict_answers_attributions(compiled: rationale.Compiled, rows: pd.DataFrame, uri: str) -> None:
    table = mlflow.pyfunc.load_model(uri).predict(rows[:5])
    attributions = compiled.explain(rows[:5])[compiled.manifest.explained[0].attributions][:, 0]
    assert np.allclose(table[list(rows.columns)], attributions, atol=1e-6)
    assert len(table) == 5


def test_no_rows_are_answered_by_no_lines(rows: pd.DataFrame, uri: str) -> None:
    model = mlflow.pyfunc.load_model(uri)
    assert len(model.predict(rows[:0])) == 0
    assert list(model.predict(rows[:0]).columns) == list(model.predict(rows[:1]).columns)


@pytest.mark.parametrize("as_rows", [np.asarray, lambda rows: rows.to_dict("list")], ids=["array", "dict"])
def test_rows_without_names_are_refused(rows: pd.DataFrame, uri: str, as_rows: Any) -> None:
    with pytest.raises(InvalidOptionError, match="give a DataFrame, by HTTP `dataframe_split`"):
        mlflow.pyfunc.load_model(uri).predict(as_rows(rows))


def test_it_is_served_over_http(compiled: rationale.Compiled, rows: pd.DataFrame, uri: str) -> None:
    from mlflow.pyfunc import scoring_server
    from starlette.testclient import TestClient

    client = TestClient(scoring_server.init(mlflow.pyfunc.load_model(uri)))
    body = {"dataframe_split": {"columns": list(rows.columns), "data": rows[:3].to_numpy().tolist()}}
    answer = client.post("/invocations", json=body)
    assert answer.status_code == 200, answer.text
    table = pd.DataFrame(answer.json()["predictions"])
    attributions = compiled.explain(rows[:3])[compiled.manifest.explained[0].attributions][:, 0]
    assert np.allclose(table[list(rows.columns)], attributions, atol=1e-6)


def test_the_folder_is_a_repository(compiled: rationale.Compiled, tmp_path: Path) -> None:
    flavor.save_model(compiled, tmp_path / "saved")
    assert rationale.load(tmp_path / "saved", "model").manifest.digests == compiled.manifest.digests
    record = yaml.safe_load((tmp_path / "saved" / "MLmodel").read_text())
    assert record["flavors"]["rationale"]["data"] == "model"
    assert (tmp_path / "saved" / "requirements.txt").read_text().startswith("rationale-onnx[mlflow]==")


def test_a_folder_that_holds_something_is_refused(compiled: rationale.Compiled, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for path in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(InvalidOptionError, match="exists already: give a new folder"):
            flavor.save_model(compiled, path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("requirements", [[], ["pandas", "rationale-onnx"]], ids=["none", "two"])
def test_requirements_are_those_given(
    compiled: rationale.Compiled, tmp_path: Path, requirements: list[str]
) -> None:
    flavor.save_model(compiled, tmp_path / "saved", pip_requirements=requirements)
    assert (tmp_path / "saved" / "requirements.txt").read_text().split() == requirements


def test_another_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "MLmodel").write_text("flavors: {}\n")
    with pytest.raises(RepositoryError):
        flavor.load_model(str(tmp_path))
