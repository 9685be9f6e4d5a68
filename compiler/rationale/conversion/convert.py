"""Conversion of another library's fitted model to ONNX, and its distance from the model itself."""

import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module, metadata
from typing import Any, Protocol, cast

import numpy as np
import onnx

from rationale.conversion.graphs import ConversionResult
from rationale.conversion.parity import (
    ADVICE,
    check_allowed,
    compare,
    describe_parity,
    parity_warnings,
    refuse_another_model,
)
from rationale.conversion.rows import Features, part_of
from rationale.conversion.wrappers import class_name, exporter, unwrap
from rationale.distribution import NAME, install
from rationale.errors import (
    InvalidModelError,
    InvalidOptionError,
    RationaleError,
    UnsupportedModelError,
    reason_of,
)
from rationale.methods.answers import mark_numbers
from rationale.methods.engine import Method
from rationale.references.reference_set import Baseline, OpenReferences
from rationale.schema.manifest import Parity

Ask = Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]


@dataclass(frozen=True)
class Library:
    """A library whose models are converted.

    Attributes:
        module: our module with `as_onnx`, imported at the first such model.
        converter: the package that writes ONNX.
        is_part: whether pipelines of scikit-learn may contain its models; `module` then also has `read_trees`
            and `read_table`.
    """

    module: str
    converter: str = NAME
    is_part: bool = False


_TORCH_ADVICE = (
    "Check that the module takes rows such as the references, and that torch.export can trace it; or export "
    "it to ONNX yourself, and compile that file"
)
LIBRARIES = {  # by the module of a class or its base, the first that fits; a class is only a part
    "sklearn.ensemble._forest.RandomTreesEmbedding": Library(
        "rationale.conversion.boosters.embedding", is_part=True
    ),
    "sklearn.ensemble._hist_gradient_boosting": Library(
        "rationale.conversion.boosters.histograms", is_part=True
    ),
    "xgboost": Library("rationale.conversion.boosters.xgboost", is_part=True),
    "lightgbm": Library("rationale.conversion.boosters.lightgbm", is_part=True),
    "catboost": Library("rationale.conversion.boosters.catboost", is_part=True),
    "optbinning": Library("rationale.conversion.boosters.scorecards"),
    "transformers": Library("rationale.conversion.pretrained", "torch"),
    "torch": Library("rationale.conversion.torch", "torch"),
    "sklearn": Library("rationale.conversion.sklearn.estimators", "skl2onnx"),
}


class _LibraryModule(Protocol):
    def features(self, model: Any) -> Features:
        """Return a fitted model's knowledge of its columns."""

    def as_onnx(self, model: Any, example: Any, **named: Any) -> ConversionResult:
        """Convert a model; raise RationaleError, or any error of its converter."""


@dataclass(frozen=True)
class Converted:
    """A fitted model as ONNX; `compile_model` takes it as it takes a file.

    Attributes:
        model: the ONNX model. It reads one tensor `x` [N, F], or a tensor [N, 1] for each column if columns
            have names or types of their own. Numbers have the example's type if that is float32, else
            float64.
        columns: names of the columns that it reads; None if the model knows none.
        by_column: whether each column is an input of its own.
        underscored: whether their names are LightGBM's, which writes underscores for spaces.
        parity: the ONNX model's distance from the fitted one; None if there were no rows to compare.
        feeds: the compared rows, in the form that the ONNX model takes.
        ask: a function that returns the fitted model's answers to rows in that form, by output of the ONNX
            model; None if the rows are no table.
    """

    model: onnx.ModelProto
    columns: tuple[str, ...] | None = None
    by_column: bool = False
    underscored: bool = False
    parity: Parity | None = None
    feeds: Mapping[str, np.ndarray] | None = field(default=None, repr=False)
    ask: Ask | None = field(default=None, repr=False)

    @property
    def report(self) -> str:
        """The parity in one line."""
        return (
            "parity: not measured, without references"
            if self.parity is None
            else describe_parity(self.parity)
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about differences that are more than rounding."""
        return () if self.parity is None else parity_warnings(self.parity)

    def columns_of(self, method: Method) -> tuple[Method, tuple[str, ...] | None]:
        """Return the method with those columns of its references that the model reads.

        References that are no table stay as they are. If no table names the one input's features, their names
        are returned too.
        """
        references: Any = getattr(method, "references", None)
        is_open = isinstance(references, OpenReferences)
        rows = references.examples if is_open else references
        selected = None if self.columns is None else part_of(rows, self.columns, underscored=self.underscored)
        if selected is None:
            return method, None if self.by_column else self.columns
        changed = replace(references, examples=selected) if is_open else selected
        return replace(cast("Any", method), references=changed), None  # all methods are dataclasses


def convert(
    model: Any,
    example: Any = None,
    *,
    allow_parity: float | None = None,
    categories: Mapping[str, Collection[str]] | None = None,
) -> Converted:
    """Convert a fitted model, and compare the ONNX model with it.

    Args:
        model: a fitted scikit-learn estimator or pipeline, an XGBoost, LightGBM or CatBoost model (a booster,
            or a model of their scikit-learn classes), or a `torch.nn.Module`.
        example: rows that the model takes: an array, a DataFrame, or for several inputs of a module a mapping
            from the argument's name to an array. `compile_model` takes the references. A module needs some,
            and so does a pipeline of named columns.
        allow_parity: the share of a column's range by which the ONNX model may differ from the fitted one, if
            a hundredth is not enough.
        categories: the names of each column's categories, if the example lacks some that a CatBoost model
            knows: the model keeps no names.

    Raises:
        CheckFailedError: if the answers of the ONNX model are not those of the fitted one.
        InvalidModelError: if the object cannot be converted, or is not fitted.
        InvalidOptionError: if the converter is not installed.
        UnsupportedModelError: if the converter does not know the model, or a part of it.
        InvalidReferencesError: if the example does not fit the model.
    """
    check_allowed(allow_parity)
    model = unwrap(model)
    name = class_name(model)
    with _converting(model) as (module, converter):
        options = {"categories": categories} if categories and name.startswith("catboost.") else {}
        result = module.as_onnx(model, example, **options)
        parity = compare(result, name, converter, allow_parity)
    if parity is not None:
        refuse_another_model(parity)
    if not converter.startswith("torch "):  # a module's features are unknown
        mark_numbers(result.proto)
    underscored = example is None and name.startswith("lightgbm.")
    ask = _fitted_answers(result)
    return Converted(result.proto, result.columns, result.by_column, underscored, parity, result.feeds, ask)


def _fitted_answers(result: ConversionResult) -> Ask | None:
    """Return a function that asks the fitted model; its answer is empty if the model refuses the rows."""
    pair = result.pair
    if pair is None:
        return None
    names = [value.name for value in result.proto.graph.output]

    def ask(feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                answers = pair.answer(pair.rows.from_onnx_inputs(feeds, by_column=result.by_column))
        except Exception:  # each library has errors of its own for rows that it refuses
            return {}
        return {n: np.asarray(a) for n, a in zip(names, answers, strict=False) if a is not None}

    return ask


def features_of(model: Any) -> Features:
    """Return a fitted model's knowledge of its columns; raise as `convert` does."""
    model = unwrap(model)
    with _converting(model) as (module, _):
        return module.features(model)


def example_of(method: Method) -> Any:
    """Return a method's references as an example; None if there are none."""
    references = method.reference_set
    if isinstance(references, OpenReferences):
        return references.examples
    return None if isinstance(references, Baseline) else references


def _library(model: object) -> Library | None:
    modules = tuple(f"{kind.__module__}." for kind in type(model).__mro__)
    for name, library in LIBRARIES.items():
        if any(module.startswith(f"{name}.") for module in modules):
            return library
    return None


def _refusal(name: str, converter: str, error: Exception) -> RationaleError:
    reason = reason_of(error)
    if type(error).__name__ == "NotFittedError":
        return InvalidModelError(f"{name} is not fitted: {reason}.")
    advice = _TORCH_ADVICE if converter.startswith("torch ") else ADVICE
    return UnsupportedModelError(
        f"{name}: {converter} cannot convert it ({type(error).__name__}: {reason}). {advice}."
    )


@contextmanager
def _converting(model: Any) -> Iterator[tuple[_LibraryModule, str]]:
    """Yield the module for a model's library and its converter's version; report the converter's errors.

    Converters' warnings about their own past and future are silenced.
    """
    library, name = _library(model), class_name(model)
    if library is None and (advice := exporter(model)) is not None:
        raise InvalidModelError(f"Rationale does not convert {name}. {advice}.")
    if library is None:
        raise InvalidModelError(
            f"{name} is not a model: give a path, an onnx.ModelProto, a fitted scikit-learn, XGBoost, "
            "LightGBM or CatBoost model, or a torch.nn.Module."
        )
    try:
        converter = f"{library.converter} {metadata.version(library.converter)}"
    except metadata.PackageNotFoundError as error:
        raise InvalidOptionError(
            f"{name} is converted by {library.converter}, which is not installed: "
            f"{install('sklearn')}, or convert it yourself and compile that file."
        ) from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield cast("_LibraryModule", import_module(library.module)), converter
        except RationaleError:
            raise
        except Exception as error:
            raise _refusal(name, converter, error) from error
