"""An explainer in the manner of scikit-learn: `Explainer(model).fit(X).explain(rows)`."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Self

import narwhals as nw
import numpy as np

from rationale.artifact.compiled import Compiled, Explanation
from rationale.compile import compile_model
from rationale.errors import InvalidOptionError
from rationale.methods.auto import Auto
from rationale.methods.engine import Method

_ARGUMENTS = ("model", "method", "references", "random_state")


class Explainer:
    """A compile with scikit-learn's conventions: `fit` takes the rows to compare with, and compiles.

        explainer = Explainer(model).fit(X_train)
        explainer.explain(X_test)  # an Explanation
        explainer.transform(X_test)  # [N, features]

    Args:
        model: a fitted model, or anything else that `compile_model` takes. `fit` does not change it.
        method: a function from references to a method, such as `TreeShap` or `DeepShap`.
        references: the number of rows of X to compare with, drawn without replacement; None takes all.
        random_state: seed of the draw.
        options: keyword arguments of `compile_model`.

    Attributes:
        compiled_: the compiled model, after `fit`: `explainer.compiled_.write("model_repository", "credit")`.
        feature_names_in_: names of the features, after `fit`.

    Raises:
        InvalidOptionError: from `explain` and `transform`, if `fit` was not called before.
    """

    def __init__(
        self,
        model: Any,
        method: Callable[[Any], Method] = Auto,
        *,
        references: int | None = 100,
        random_state: int = 0,
        **options: Any,
    ) -> None:
        self.model = model
        self.method = method
        self.references = references
        self.random_state = random_state
        self.options = options

    def fit(self, X: Any, y: Any = None) -> Self:
        """Compile the model with rows of X as references.

        Args:
            X: rows [N, F], an array or a DataFrame of any library; for several inputs, a dict of them.
            y: ignored.

        Raises:
            InvalidOptionError, UnsupportedModelError, InvalidReferencesError: see `compile_model`.
        """
        del y
        self.compiled_: Compiled = compile_model(self.model, self.method(self._drawn(X)), **self.options)
        names = [name for each in self.compiled_.manifest.explained for name in each.feature_names or ()]
        self.feature_names_in_ = np.array(names, object)
        return self

    def _drawn(self, X: Any) -> Any:
        if isinstance(X, Mapping):  # the same rows of each input: the seed is the same
            return {name: self._drawn(rows) for name, rows in X.items()}
        rows = nw.from_native(X, eager_only=True, pass_through=True)
        if not hasattr(rows, "__len__") or isinstance(rows, (str, bytes)):
            raise InvalidOptionError(f"X is a {type(X).__name__}, not rows: give an array or a DataFrame.")
        count = self.references
        if count is not None and (not isinstance(count, (int, np.integer)) or count < 1):
            raise InvalidOptionError(f"references={count}: give 1 or more, or None for all rows.")
        if count is None or count >= len(rows):
            return X
        chosen = np.sort(np.random.default_rng(self.random_state).choice(len(rows), count, False))
        return (
            nw.to_native(rows[chosen.tolist()]) if isinstance(rows, nw.DataFrame) else np.asarray(X)[chosen]
        )

    def explain(self, X: Any) -> Explanation:
        """Explain rows; see `Compiled.explain`."""
        return self._fitted().explain(X)

    def transform(self, X: Any) -> np.ndarray:
        """Return the attributions of rows, [N, F]: of all features, in the order of `feature_names_in_`.

        Raises:
            InvalidOptionError: if several targets are explained, or the model gives no value for each name.
        """
        compiled = self._fitted()
        answer = compiled.explain(X)
        parts = [answer[each.attributions] for each in compiled.manifest.explained if each.attributions]
        if any(part.ndim != 3 or part.shape[1] != 1 for part in parts):
            raise InvalidOptionError(
                "transform returns a number for each row and feature: choose one target (targets=[1]) and a "
                "model of tables, or call explain."
            )
        return np.concatenate([part[:, 0] for part in parts], axis=1)

    def fit_transform(self, X: Any, y: Any = None) -> np.ndarray:
        """Return the attributions of the rows that `fit` takes."""
        return self.fit(X, y).transform(X)

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Return the names of the columns of `transform`."""
        del input_features
        self._fitted()
        return self.feature_names_in_

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        del deep
        return {name: getattr(self, name) for name in _ARGUMENTS} | self.options

    def __sklearn_clone__(self) -> Self:
        """Return an explainer that is not fitted, of the same model: scikit-learn would unfit that too."""
        return type(self)(**self.get_params())

    def set_params(self, **params: Any) -> Self:
        """Set arguments of the constructor, or options of `compile_model`.

        Raises:
            ValueError: if a name is neither, as scikit-learn's estimators do.
        """
        known = inspect.signature(compile_model).parameters.keys() - {"model", "method"}
        valid = sorted({*_ARGUMENTS, *known})
        if unknown := [name for name in params if name not in valid]:
            raise ValueError(
                f"Invalid parameter {unknown[0]!r} for estimator {type(self).__name__}(). Valid parameters "
                f"are: {valid}."
            )
        for name, value in params.items():
            if name in _ARGUMENTS:
                setattr(self, name, value)
            else:
                self.options[name] = value
        return self

    def _fitted(self) -> Compiled:
        if not hasattr(self, "compiled_"):
            raise InvalidOptionError("the explainer is not fitted: call fit(X) first.")
        return self.compiled_
