"""Files in which other libraries save fitted models."""

from pathlib import Path
from typing import Any

from rationale.conversion.wrappers import export_advice
from rationale.distribution import install
from rationale.errors import InvalidModelError, InvalidOptionError, RationaleError, reason_of

ALLOW_PICKLE = "RATIONALE_ALLOW_PICKLE"  # 1 lets commands read them without --allow-pickle
PICKLES = (".joblib", ".pkl", ".pickle")
_ELSEWHERE = {
    ".keras": "keras",
    ".h5": "keras",
    ".mojo": "h2o",
    ".pmml": "pypmml",
}  # by the package that reads them


def is_fitted_file(path: Path) -> bool:
    """Tell whether this is a fitted model's folder, or by its ending its file; other files are ONNX."""
    return path.is_dir() or path.suffix.lower() in (*PICKLES, *_READERS, *_ELSEWHERE) or _is_name(path)


def _is_name(path: Path) -> bool:
    """Tell whether a path may be the name of a model elsewhere, such as bert-base-uncased or owner/name."""
    known = (".onnx", *PICKLES, *_READERS, *_ELSEWHERE)
    return not path.exists() and path.suffix.lower() not in known and path.parent.parent == Path()


def read_fitted(path: Path, *, allow_pickle: bool = False, missing: float | None = None) -> Any:
    """Read a model that XGBoost, LightGBM or CatBoost saved, a pickle, or a folder of Hugging Face's.

    Args:
        missing: the number that XGBoost's model takes for a missing value, which its file does not hold.

    Raises:
        InvalidOptionError: if the file is a pickle, which may run any code as it is read, and `allow_pickle`
            is false; or if the library is not installed.
        InvalidModelError: if the file cannot be read, or its library exports its own models.
    """
    kind = path.suffix.lower()
    if missing is None and (path.is_dir() or _is_name(path)):
        return _folder(path)
    if kind in _ELSEWHERE:
        raise InvalidModelError(f"Rationale does not convert {path}. {export_advice(_ELSEWHERE[kind])}.")
    if kind in PICKLES and not allow_pickle:
        raise InvalidOptionError(
            f"{path}: reading a pickle runs the code in it, with your rights. If you trust the file's "
            f"author, add --allow-pickle, or set {ALLOW_PICKLE}=1 for every command (in Python: load the "
            "model yourself and pass it)."
        )
    if missing is not None and _READERS.get(kind) is not _xgboost:
        raise InvalidOptionError(f"--missing works only for XGBoost's files, and {path} is not one.")
    if not path.is_file():
        raise InvalidModelError(f"{path}: cannot be read: no such file.")
    read = _READERS.get(kind, _pickle)
    try:
        model = read(path)
        if missing is not None:
            model.set_attr(missing=repr(float(missing)))
        return model
    except ModuleNotFoundError as error:
        raise InvalidOptionError(
            f"{path}: reading it needs {error.name}, which is not installed. Install the packages that "
            "saved the file."
        ) from error
    except Exception as error:  # a library or a pickle may raise any error
        raise InvalidModelError(
            f"{path}: cannot be read ({type(error).__name__}: {reason_of(error)}). Save it again with the "
            "versions of the libraries that are installed here."
        ) from error


def _folder(path: Path) -> Any:
    if not path.is_dir():
        raise InvalidModelError(
            f"{path}: there is no such file or folder, and nothing is downloaded: give a model's file "
            "(rationale compile --help lists the kinds), or the folder in which a model of Hugging Face was "
            "saved (save_pretrained)."
        )
    if not (path / "config.json").is_file():
        raise InvalidModelError(
            f"{path}: is a folder without config.json, which a model of Hugging Face has: save it there by "
            "save_pretrained, or give a file."
        )
    try:
        from rationale.conversion.pretrained import read_folder
    except ImportError as error:
        lack = f"needs {error.name}, which is not installed" if error.name else f"failed: {reason_of(error)}"
        raise InvalidOptionError(f"{path}: reading it {lack}: {install('transformers')}.") from error
    try:
        return read_folder(path)
    except RationaleError:
        raise
    except Exception as error:  # transformers raises errors of many types
        raise InvalidModelError(
            f"{path}: transformers cannot read it ({type(error).__name__}: {reason_of(error)})."
        ) from error


def _pickle(path: Path) -> Any:
    import joblib

    return joblib.load(path)


def _xgboost(path: Path) -> Any:
    import xgboost as xgb

    return xgb.Booster(model_file=str(path))


def _lightgbm(path: Path) -> Any:
    import lightgbm as lgb

    return lgb.Booster(model_file=str(path))


def _catboost(path: Path) -> Any:
    import catboost

    return catboost.CatBoost().load_model(str(path))


_READERS = {".json": _xgboost, ".ubj": _xgboost, ".txt": _lightgbm, ".cbm": _catboost}
