"""Compiled models as a flavour of MLflow: logged, loaded, and served with their explanations.

    import rationale.mlflow

    with mlflow.start_run():
        info = rationale.mlflow.log_model(compiled, "credit")
    rationale.mlflow.load_model(info.model_uri).explain(rows)
    mlflow.pyfunc.load_model(info.model_uri).predict(rows)  # a table with the attributions

`pip install 'rationale-onnx[mlflow]'`.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rationale.artifact.compiled import Compiled
from rationale.artifact.entry import load
from rationale.distribution import NAME, version
from rationale.errors import InvalidOptionError
from rationale.portfolios.arrow import batches_schema, explain_batches

if TYPE_CHECKING:
    from mlflow.models import Model

FLAVOR = "rationale"
_ENTRY = "model"  # the entry's name in the repository that the logged folder is


def save_model(
    compiled: Compiled,
    path: str | Path,
    mlflow_model: "Model | None" = None,
    signature: Any = None,
    pip_requirements: Iterable[str] | None = None,
) -> None:
    """Write a compiled model as an MLflow model: a model repository with the file `MLmodel`.

    `rationale serve --repository PATH` and Triton serve the folder too.

    Args:
        path: a folder that is empty, or does not exist yet.
        mlflow_model: the record to add to; `log_model` passes it.
        signature: MLflow's signature of inputs and outputs.
        pip_requirements: requirements to serve it, perhaps none; by default this version of Rationale.

    Raises:
        InvalidOptionError: if the folder holds something.
        RepositoryError: if the folder cannot be written.
    """
    from mlflow import pyfunc
    from mlflow.models import Model

    folder = Path(path)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidOptionError(f"{path} exists already: give a new folder, or remove this one first.")
    compiled.write(folder, _ENTRY)
    model = mlflow_model or Model()
    if signature is not None:
        model.signature = signature
    model.add_flavor(FLAVOR, data=_ENTRY, rationale=version())
    needed = [f"{NAME}[mlflow]=={version()}"] if pip_requirements is None else pip_requirements
    text = "".join(f"{requirement}\n" for requirement in needed)
    (folder / "requirements.txt").write_text(text, encoding="utf-8")
    pyfunc.add_to_model(model, loader_module="rationale.mlflow")
    model.save(str(folder / "MLmodel"))


def log_model(compiled: Compiled, name: str, **arguments: Any) -> Any:
    """Log a compiled model in the active run; return MLflow's record of it (`model_uri`).

    Args:
        name: name of the logged model.
        arguments: arguments of `save_model` and `mlflow.models.Model.log`, such as `registered_model_name`.
    """
    from mlflow.models import Model

    import rationale.mlflow as flavor

    return Model.log(artifact_path=None, name=name, flavor=flavor, compiled=compiled, **arguments)


def load_model(model_uri: str, dst_path: str | None = None) -> Compiled:
    """Return a logged model as `compile_model` returned it: to explain, decide and draw here.

    Args:
        model_uri: any URI that MLflow reads, such as `runs:/…`, `models:/credit/3` or a folder.
        dst_path: folder to download to.

    Raises:
        RepositoryError: if it is no model of this flavour.
    """
    from mlflow.artifacts import download_artifacts

    return load(download_artifacts(artifact_uri=model_uri, dst_path=dst_path), _ENTRY)


class ServedModel:
    """A loaded model behind MLflow's generic interface, `mlflow.pyfunc`."""

    def __init__(self, compiled: Compiled) -> None:
        self.compiled = compiled

    def predict(self, model_input: Any, params: Any = None) -> Any:
        """Return a table with a line for each row and target, as `rationale explain --save` writes it.

        Args:
            model_input: rows as a DataFrame.
            params: ignored.

        Raises:
            InvalidOptionError: if the rows are no DataFrame, or do not fit the model.
        """
        del params
        import pandas as pd
        import pyarrow as pa

        if not isinstance(model_input, pd.DataFrame):
            raise InvalidOptionError(
                f"the rows are a {type(model_input).__name__}: give a DataFrame, by HTTP `dataframe_split` "
                "or `dataframe_records`, with the features' names as columns."
            )
        rows = pa.Table.from_pandas(model_input, preserve_index=False)
        answers = explain_batches(self.compiled, rows)
        return pa.Table.from_batches(answers, batches_schema(self.compiled)).to_pandas()


def _load_pyfunc(path: str) -> ServedModel:
    """Load the model for `mlflow.pyfunc`, which calls this by name."""
    return ServedModel(load(path, _ENTRY))


__all__ = ["load_model", "log_model", "save_model"]
