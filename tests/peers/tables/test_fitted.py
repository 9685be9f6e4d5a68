"""Fitted models of every kind, each against every coalition of its own answers: right, refused or warned of.

Brute force asks the fitted model itself, on rows, on mixtures of row and reference, and on rows with values
missing: what is served and wrong without a word would show here, whichever library made the ONNX model.
"""

import itertools
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import catboost as cb
import lightgbm as lgb
import numpy as np
import pandas as pd
import pytest
import xgboost as xgb
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
from sklearn.ensemble import (
    AdaBoostClassifier,
    AdaBoostRegressor,
    BaggingClassifier,
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    IsolationForest,
    RandomForestClassifier,
    RandomForestRegressor,
    StackingClassifier,
    StackingRegressor,
    VotingClassifier,
    VotingRegressor,
)
from sklearn.feature_selection import SelectKBest
from sklearn.impute import KNNImputer, MissingIndicator, SimpleImputer
from sklearn.linear_model import (
    GammaRegressor,
    HuberRegressor,
    LogisticRegression,
    PoissonRegressor,
    Ridge,
    RidgeClassifier,
    SGDClassifier,
    TweedieRegressor,
)
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import MultiOutputRegressor
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline, make_union
from sklearn.preprocessing import (
    Binarizer,
    FunctionTransformer,
    KBinsDiscretizer,
    MaxAbsScaler,
    MinMaxScaler,
    Normalizer,
    PolynomialFeatures,
    PowerTransformer,
    QuantileTransformer,
    RobustScaler,
    SplineTransformer,
    StandardScaler,
    TargetEncoder,
)
from sklearn.svm import SVC, SVR, LinearSVC
from sklearn.tree import DecisionTreeRegressor

from rationale import Auto, RationaleError, TreeShap, compile_model
from rationale.conversion.parity import LIMIT
from tests.compiler.conversion.sklearn.test_wrappers import MODELS as WRAPPERS
from tests.compiler.conversion.sklearn.test_wrappers import X as SHARES

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

NAMES = list("abcde")
ROWS, K, N = 400, 12, 4
OF_RANGE = 1e-5  # the largest error, of the range of a column

_RANDOM = np.random.default_rng(0)
X = pd.DataFrame(_RANDOM.integers(0, 40, (ROWS, 5)).astype(float), columns=NAMES)
Y = ((X.a > 20) ^ (X.b * X.c > 300)).astype(int)
THREE = Y + (X.d > 30)
AMOUNT = X.a * 3 + np.where(X.b > 10, X.c, -X.d)
POSITIVE = AMOUNT.abs() + 1
GAPS = X.mask(_RANDOM.random(X.shape) < 0.1)
GROUPS = [20] * 20

SMALL: dict[str, Any] = {"n_estimators": 6, "max_depth": 3, "random_state": 0}
QUIET: dict[str, Any] = {**SMALL, "verbose": -1}
CAT: dict[str, Any] = {"iterations": 6, "depth": 3, "verbose": False, "allow_writing_files": False}
Fit = Callable[[], Any]


def fitted(model: Any, y: Any = Y, x: Any = X, **how: Any) -> Fit:
    return lambda: model.fit(x, y, **how)


def boosted(objective: str, y: Any, kind: Any = xgb.XGBRegressor, **options: Any) -> Fit:
    return fitted(kind(objective=objective, **SMALL, **options), y)


def light(objective: str, y: Any, kind: Any = lgb.LGBMRegressor, **options: Any) -> Fit:
    return fitted(kind(objective=objective, **QUIET, **options), y)


def stopped(model: Any, **how: Any) -> Fit:
    return lambda: model.fit(X[:250], Y[:250], eval_set=[(X[250:], Y[250:])], **how)


def forest() -> Any:
    return RandomForestClassifier(**SMALL)


def mixed(step: Any, remainder: str = "passthrough") -> Any:
    return ColumnTransformer([("some", step, ["a", "b"])], remainder=remainder)


SKLEARN: dict[str, Fit] = {
    "gradient boosting": fitted(GradientBoostingClassifier(**SMALL)),
    "gradient boosting of three": fitted(GradientBoostingClassifier(**SMALL), THREE),
    "gradient boosting, huber": fitted(GradientBoostingRegressor(loss="huber", **SMALL), AMOUNT),
    "histograms": fitted(HistGradientBoostingClassifier(max_iter=6), x=GAPS),
    "histograms, poisson": fitted(HistGradientBoostingRegressor(loss="poisson", max_iter=6), POSITIVE),
    "histograms of categories": fitted(
        HistGradientBoostingClassifier(max_iter=6, categorical_features=["a"], random_state=0)
    ),
    "forest": fitted(forest()),
    "forest with gaps": fitted(forest(), x=GAPS),
    "forest of numbers with gaps": fitted(RandomForestRegressor(**SMALL), AMOUNT, GAPS),
    "extra trees": fitted(ExtraTreesClassifier(**SMALL)),
    "tree with gaps": fitted(DecisionTreeRegressor(max_depth=4), AMOUNT, GAPS),
    "isolation forest": fitted(IsolationForest(n_estimators=6, random_state=0)),
    "bagging": fitted(BaggingClassifier(n_estimators=5, random_state=0)),
    "bagging behind a scaler": fitted(make_pipeline(StandardScaler(), BaggingClassifier(n_estimators=5))),
    "ada": fitted(AdaBoostClassifier(n_estimators=5, random_state=0)),
    "ada of numbers": fitted(AdaBoostRegressor(n_estimators=5, random_state=0), AMOUNT),
    "trees behind scalers": fitted(
        make_pipeline(mixed(RobustScaler()), MinMaxScaler(), GradientBoostingClassifier(**SMALL))
    ),
    "trees behind an imputer and a scaler": fitted(
        make_pipeline(SimpleImputer(), StandardScaler(), GradientBoostingClassifier(**SMALL)), x=GAPS
    ),
    "votes behind a scaler": fitted(
        make_pipeline(
            MaxAbsScaler(),
            VotingClassifier([("a", forest()), ("b", GradientBoostingClassifier(**SMALL))], voting="soft"),
        )
    ),
    "votes": fitted(VotingClassifier([("a", LogisticRegression()), ("b", forest())], voting="soft")),
    "hard votes": fitted(VotingClassifier([("a", LogisticRegression()), ("b", forest())])),
    "votes on numbers": fitted(
        VotingRegressor([("a", Ridge()), ("b", RandomForestRegressor(**SMALL))]), AMOUNT
    ),
    "stack": fitted(StackingClassifier([("a", LogisticRegression()), ("b", forest())], LogisticRegression())),
    "stack that passes through": fitted(
        StackingClassifier([("b", forest())], LogisticRegression(), passthrough=True)
    ),
    "stack of margins": fitted(StackingClassifier([("a", LinearSVC()), ("b", forest())])),
    "stack on numbers": fitted(
        StackingRegressor([("a", Ridge()), ("b", RandomForestRegressor(**SMALL))]), AMOUNT
    ),
    "sigmoid calibration": fitted(CalibratedClassifierCV(GradientBoostingClassifier(**SMALL), cv=3)),
    "isotonic calibration": fitted(CalibratedClassifierCV(forest(), method="isotonic", cv=3)),
    "indicator": fitted(make_pipeline(SimpleImputer(add_indicator=True), LogisticRegression()), x=GAPS),
    "indicator among columns": fitted(
        make_pipeline(
            ColumnTransformer(
                [("n", make_pipeline(SimpleImputer(add_indicator=True), StandardScaler()), NAMES)]
            ),
            LogisticRegression(),
        ),
        x=GAPS,
    ),
    "indicators beside": fitted(
        make_pipeline(make_union(SimpleImputer(), MissingIndicator()), LogisticRegression()), x=GAPS
    ),
    "another mark of what is missing": fitted(
        make_pipeline(SimpleImputer(missing_values=0, add_indicator=True), LogisticRegression())
    ),
    "neighbours impute": fitted(make_pipeline(KNNImputer(), LogisticRegression()), x=GAPS),
    "logarithm": fitted(make_pipeline(FunctionTransformer(np.log1p), LogisticRegression())),
    "root of columns": fitted(
        make_pipeline(mixed(FunctionTransformer(np.sqrt)), GradientBoostingClassifier(**SMALL))
    ),
    "function of one's own": fitted(
        make_pipeline(FunctionTransformer(lambda x: x * 2), LogisticRegression())
    ),
    "bins": fitted(make_pipeline(KBinsDiscretizer(4, encode="onehot-dense"), LogisticRegression())),
    "ordinal bins": fitted(make_pipeline(KBinsDiscretizer(4, encode="ordinal"), forest())),
    "splines": fitted(make_pipeline(SplineTransformer(), Ridge()), AMOUNT),
    "polynomial": fitted(make_pipeline(PolynomialFeatures(2), StandardScaler(), LogisticRegression())),
    "quantiles": fitted(make_pipeline(QuantileTransformer(n_quantiles=50), LogisticRegression())),
    "power": fitted(make_pipeline(PowerTransformer(), LogisticRegression())),
    "components": fitted(make_pipeline(StandardScaler(), PCA(3), LogisticRegression())),
    "selection": fitted(make_pipeline(SelectKBest(k=3), LogisticRegression())),
    "normaliser": fitted(make_pipeline(Normalizer(), LogisticRegression())),
    "binariser": fitted(make_pipeline(Binarizer(threshold=10), LogisticRegression())),
    "target encoder": fitted(make_pipeline(mixed(TargetEncoder()), LogisticRegression())),
    "kernel machine": fitted(make_pipeline(StandardScaler(), SVC(probability=True, random_state=0))),
    "kernel regression": fitted(make_pipeline(StandardScaler(), SVR()), AMOUNT),
    "bayes": fitted(GaussianNB()),
    "linear discriminant": fitted(LinearDiscriminantAnalysis()),
    "quadratic discriminant": fitted(QuadraticDiscriminantAnalysis()),
    "network": fitted(make_pipeline(StandardScaler(), MLPClassifier((8,), max_iter=50, random_state=0))),
    "descent": fitted(make_pipeline(StandardScaler(), SGDClassifier(loss="log_loss", random_state=0))),
    "ridge classifier": fitted(RidgeClassifier()),
    "huber": fitted(HuberRegressor(max_iter=1000), AMOUNT),
    "poisson": fitted(PoissonRegressor(), POSITIVE, X / 32),
    "gamma": fitted(GammaRegressor(), POSITIVE, X / 32),
    "tweedie": fitted(TweedieRegressor(power=1.5), POSITIVE, X / 32),
    "neighbours": fitted(KNeighborsClassifier(3)),
    "one against the rest": fitted(OneVsRestClassifier(LogisticRegression()), THREE),
    "two targets": fitted(MultiOutputRegressor(Ridge()), np.stack([AMOUNT, Y], axis=1)),
    "transformed target": fitted(
        TransformedTargetRegressor(Ridge(), func=np.log1p, inverse_func=np.expm1), POSITIVE
    ),
}
XGBOOST: dict[str, Fit] = {
    "classifier": fitted(xgb.XGBClassifier(**SMALL), x=GAPS),
    "classifier of three": fitted(xgb.XGBClassifier(**SMALL), THREE),
    "softmax": boosted("multi:softmax", THREE, xgb.XGBClassifier),
    "margins": boosted("binary:logitraw", Y, xgb.XGBClassifier),
    "hinge": boosted("binary:hinge", Y, xgb.XGBClassifier),
    "regressor": fitted(xgb.XGBRegressor(**SMALL), AMOUNT, GAPS),
    "logistic": boosted("reg:logistic", Y),
    "squared log": boosted("reg:squaredlogerror", POSITIVE),
    "pseudo huber": boosted("reg:pseudohubererror", AMOUNT),
    "absolute": boosted("reg:absoluteerror", AMOUNT),
    "quantile": boosted("reg:quantileerror", AMOUNT, quantile_alpha=0.3),
    "two quantiles": boosted("reg:quantileerror", AMOUNT, quantile_alpha=[0.3, 0.7]),
    "gamma": boosted("reg:gamma", POSITIVE),
    "tweedie": boosted("reg:tweedie", POSITIVE),
    "poisson": boosted("count:poisson", POSITIVE),
    "cox": boosted("survival:cox", POSITIVE),
    "aft": lambda: xgb.train(
        {"objective": "survival:aft", "max_depth": 3},
        xgb.DMatrix(X, label_lower_bound=POSITIVE, label_upper_bound=POSITIVE),
        6,
    ),
    "ranker": fitted(xgb.XGBRanker(**SMALL), Y, group=GROUPS),
    "two targets": fitted(xgb.XGBRegressor(**SMALL), np.stack([AMOUNT * 1000, Y], axis=1)),
    "two targets a leaf": fitted(
        xgb.XGBRegressor(multi_strategy="multi_output_tree", **SMALL), np.stack([AMOUNT, Y], axis=1)
    ),
    "stopped early": stopped(
        xgb.XGBClassifier(n_estimators=80, max_depth=3, learning_rate=1.0, early_stopping_rounds=2),
        verbose=False,
    ),
    "-999 for what is missing": fitted(xgb.XGBClassifier(missing=-999.0, **SMALL), x=GAPS.fillna(-999.0)),
    "base score": fitted(xgb.XGBClassifier(base_score=0.2, **SMALL)),
    "drop out": fitted(xgb.XGBClassifier(booster="dart", rate_drop=0.5, **SMALL)),
    "linear": fitted(xgb.XGBRegressor(booster="gblinear", n_estimators=6), AMOUNT),
    "parallel trees": fitted(xgb.XGBClassifier(num_parallel_tree=3, **SMALL)),
    "random forest": fitted(xgb.XGBRFClassifier(**SMALL)),
    "leaves": fitted(xgb.XGBClassifier(grow_policy="lossguide", max_leaves=5, **SMALL)),
    "categories": lambda: xgb.XGBClassifier(enable_categorical=True, **SMALL).fit(
        X.assign(a=pd.Categorical(X.a.astype(int) % 5)), Y
    ),
}
LIGHTGBM: dict[str, Fit] = {
    "classifier": fitted(lgb.LGBMClassifier(**QUIET), x=GAPS),
    "classifier of three": fitted(lgb.LGBMClassifier(**QUIET), THREE),
    "one against all": light("multiclassova", THREE, lgb.LGBMClassifier),
    "cross entropy": light("cross_entropy", Y, lgb.LGBMClassifier),
    "regressor": fitted(lgb.LGBMRegressor(**QUIET), AMOUNT, GAPS),
    "l1": light("regression_l1", AMOUNT),
    "huber": light("huber", AMOUNT),
    "fair": light("fair", AMOUNT),
    "poisson": light("poisson", POSITIVE),
    "quantile": light("quantile", AMOUNT),
    "mape": light("mape", POSITIVE),
    "gamma": light("gamma", POSITIVE),
    "tweedie": light("tweedie", POSITIVE),
    "root": light("regression", POSITIVE, reg_sqrt=True),
    "ranker": fitted(lgb.LGBMRanker(**QUIET), Y, group=GROUPS),
    "drop out": fitted(lgb.LGBMClassifier(boosting_type="dart", **QUIET)),
    "random forest": fitted(lgb.LGBMClassifier(boosting_type="rf", subsample=0.5, subsample_freq=1, **QUIET)),
    "zeros missing": fitted(lgb.LGBMClassifier(zero_as_missing=True, **QUIET)),
    "nothing missing": fitted(lgb.LGBMClassifier(use_missing=False, **QUIET)),
    "linear trees": fitted(lgb.LGBMRegressor(linear_tree=True, **QUIET), AMOUNT),
    "stopped early": stopped(
        lgb.LGBMClassifier(n_estimators=80, learning_rate=1.0, verbose=-1),
        callbacks=[lgb.early_stopping(2, verbose=False)],
    ),
    "categories": lambda: lgb.LGBMClassifier(min_child_samples=5, **QUIET).fit(
        X.assign(a=X.a.astype(int)), Y, categorical_feature=["a"]
    ),
}
CATBOOST: dict[str, Fit] = {
    "classifier": fitted(cb.CatBoostClassifier(**CAT), x=GAPS),
    "classifier of three": fitted(cb.CatBoostClassifier(**CAT), THREE),
    "cross entropy": fitted(cb.CatBoostClassifier(loss_function="CrossEntropy", **CAT), Y),
    "regressor": fitted(cb.CatBoostRegressor(**CAT), AMOUNT, GAPS),
    "poisson": fitted(cb.CatBoostRegressor(loss_function="Poisson", **CAT), POSITIVE),
    "quantile": fitted(cb.CatBoostRegressor(loss_function="Quantile:alpha=0.3", **CAT), AMOUNT),
    "two targets": fitted(
        cb.CatBoostRegressor(loss_function="MultiRMSE", **CAT), np.stack([AMOUNT, Y], axis=1)
    ),
    "leaf by leaf": fitted(cb.CatBoostClassifier(grow_policy="Lossguide", **CAT)),
    "depth by depth": fitted(cb.CatBoostClassifier(grow_policy="Depthwise", **CAT)),
    "largest for what is missing": fitted(cb.CatBoostClassifier(nan_mode="Max", **CAT), x=GAPS),
    "ranker": fitted(cb.CatBoostRanker(**CAT), Y, group_id=np.repeat(range(20), 20)),
    "categories": lambda: cb.CatBoostClassifier(cat_features=["a"], **CAT).fit(
        X.assign(a=X.a.astype(int)), Y
    ),
}
STEPS: dict[str, Any] = {
    "scaler": StandardScaler(),
    "range": MinMaxScaler(),
    "robust": RobustScaler(),
    "largest": MaxAbsScaler(),
    "logarithm": FunctionTransformer(np.log1p),
    "quantiles": QuantileTransformer(n_quantiles=50),
    "power": PowerTransformer(),
    "polynomial": PolynomialFeatures(2),
    "components": PCA(3),
    "imputer": SimpleImputer(add_indicator=True),
    "nothing": "passthrough",
}
LAST: dict[str, Any] = {
    "forest": RandomForestClassifier(**SMALL),
    "gradient boosting": GradientBoostingClassifier(**SMALL),
    "xgboost": xgb.XGBClassifier(**SMALL),
    "lightgbm": lgb.LGBMClassifier(**QUIET),
    "histograms": HistGradientBoostingClassifier(max_iter=6),
    "catboost": cb.CatBoostClassifier(**CAT),
    "logistic": LogisticRegression(),
}
CENTS = pd.DataFrame(
    {
        "a": _RANDOM.normal(3000, 900, ROWS).round(2),
        "b": _RANDOM.uniform(0, 1, ROWS).round(4),
        "c": _RANDOM.integers(18, 80, ROWS),
        "d": _RANDOM.lognormal(5, 1, ROWS).round(2),
        "e": (1 << 40) + _RANDOM.integers(0, 1000, ROWS),
    }
).abs()
PAID = (CENTS.a / 3000 + CENTS.b * 2 + np.sin(CENTS.d) + CENTS.e % 2 > 2.5).astype(int)


def of_type(kind: str) -> pd.DataFrame:
    return CENTS if kind == "table" else CENTS.astype(kind)


def behind(step: str, last: str, x: Any) -> Fit:
    return fitted(clone(make_pipeline(STEPS[step], LAST[last])), PAID, x)


NUMBERS: dict[str, Fit] = {
    f"{step}, {last}, {kind}": behind(step, last, of_type(kind))
    for step, last, kind in itertools.product(STEPS, LAST, ("table", "float64", "float32"))
}
NUMBERS |= {
    f"{step}, {last}, {kind} array": behind(step, last, of_type(kind).to_numpy())
    for step, last, kind in itertools.product(("scaler", "nothing"), LAST, ("float64", "float32"))
}
MODELS = {
    f"{library}: {name}": fit
    for library, models in {
        "numbers": NUMBERS,
        "wrappers": {name: fitted(clone(model), y, SHARES) for name, (model, y) in WRAPPERS.items()},
        "sklearn": SKLEARN,
        "XGBoost": XGBOOST,
        "LightGBM": LIGHTGBM,
        "CatBoost": CATBOOST,
    }.items()
    for name, fit in models.items()
}
METHODS = {"auto": Auto, "treeshap": TreeShap}


def answers_of(model: Any, x: pd.DataFrame) -> Iterator[np.ndarray]:
    """[M, C] each: all that a fitted model says of rows, by whatever name."""
    rows_of_model: Any = xgb.DMatrix(x) if isinstance(model, xgb.Booster) else x
    questions: list[tuple[str, dict[str, Any]]] = [
        *((name, {}) for name in ("predict_proba", "decision_function", "predict", "score_samples")),
        *(("predict", how) for how in ({"output_margin": True}, {"raw_score": True})),
        *(("predict", {"prediction_type": kind}) for kind in ("RawFormulaVal", "Exponent", "Probability")),
    ]
    for name, how in questions:
        try:
            answer = np.asarray(getattr(model, name)(rows_of_model, **how), np.float64)
        except (AttributeError, TypeError, ValueError, cb.CatBoostError):  # none such
            continue
        answer = answer.reshape(len(x), -1)
        yield answer
        if answer.shape[1] == 1:  # that of class 1 alone, or a vote
            yield np.concatenate([1 - answer, -answer], axis=1)
        if name == "predict" and not how and (answer > 0).all():  # what is behind a link of logarithms
            yield np.log(answer)
        if name == "predict_proba":
            with np.errstate(divide="ignore"):
                yield np.log(answer)
                yield np.log(answer) - np.log(1 - answer)


def like(rows: np.ndarray, example: pd.DataFrame) -> pd.DataFrame:
    """Rows in the types of the columns on which a model was fitted."""
    table = pd.DataFrame(rows, columns=NAMES)
    for name in NAMES:
        kind = example[name].dtype
        if isinstance(kind, pd.CategoricalDtype):
            codes = [None if np.isnan(value) else int(value) for value in table[name]]
            table[name] = pd.Categorical(codes, dtype=kind)
        elif kind.kind == "f" or (kind.kind == "i" and not table[name].isna().any()):
            table[name] = table[name].astype(kind)
    return table


def due_of(model: Any, rows: pd.DataFrame, references: pd.DataFrame) -> list[tuple[np.ndarray, ...]]:
    """For each answer: what it says of rows [N, C], its Shapley values [N, C, F], its range [C]."""
    masks = np.array(list(itertools.product([False, True], repeat=len(NAMES))))
    row_values, other = (t.to_numpy(np.float64) for t in (rows, references))
    mixed = np.where(masks[:, None, None], row_values[None, :, None], other[None, None])  # [2^F, N, K, F]
    sizes = masks.sum(axis=1)
    values = []
    for flat in answers_of(model, like(mixed.reshape(-1, len(NAMES)), references)):
        answer = flat.reshape(*mixed.shape[:3], -1)
        value = answer.mean(axis=2)  # [2^F, N, C]
        expected = np.zeros((*value.shape[1:], len(NAMES)))
        for f in range(len(NAMES)):
            with_f = np.flatnonzero(masks[:, f])
            without = [
                int(np.flatnonzero((masks == (masks[i] & (np.arange(5) != f))).all(1))[0]) for i in with_f
            ]
            share = [1 / (5 * math.comb(4, sizes[i])) for i in without]
            expected[..., f] = np.tensordot(share, value[with_f] - value[without], 1)
        values.append((value[-1], expected, np.ptp(answer.reshape(-1, answer.shape[-1]), axis=0)))
    return values


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", MODELS)
def test_right_or_refused_or_warned_of(name: str, method: str) -> None:
    model = MODELS[name]()
    example = _example(model, name)
    references = example[:K]
    try:
        compiled = compile_model(model, METHODS[method](references), targets="all")
    except RationaleError as refusal:
        print("refused:", refusal)
        return
    parity = compiled.manifest.parity
    assert parity is not None
    is_warned = parity.relative > LIMIT or bool(parity.labels or parity.uncompared)
    assert compiled.manifest.warnings or not is_warned
    whole = example[example.notna().all(axis=1)][-N:]
    holes = whole.astype(float).mask(np.eye(N, len(NAMES), dtype=bool))
    for rows in (whole, holes):
        try:
            answer = compiled.explain(rows)
        except RationaleError:
            assert rows is holes, "rows such as the references are answered"
            continue
        ours = _attributions(answer)  # [N, T, F]
        candidates = due_of(model, rows, references)
        if rows is holes and not candidates:  # the fitted model answers none of them
            assert parity.missing_unknown
            continue
        for target in range(ours.shape[1]):
            says = answer["explained_value"][:, target].astype(np.float64)
            error = min(
                _error(says, ours[:, target], value[:, c], expected[:, c], span[c])
                for value, expected, span in candidates
                for c in range(value.shape[1])
            )
            assert error <= OF_RANGE or is_warned, f"{error:.1e} of the range, and nobody says so"


def _error(says: Any, ours: Any, value: Any, expected: Any, span: float) -> float:
    """Of the value or of its attributions, whichever is worse; infinite where it is not a number."""
    worst = max(np.abs(says - value).max(), np.abs(ours - expected).max())
    worst /= span if span > 1e-12 else 1.0  # the rounding of a constant is no range
    return float(worst) if np.isfinite(worst) else math.inf


def _attributions(answer: dict[str, np.ndarray]) -> np.ndarray:
    if "x_attributions" in answer:
        return np.asarray(answer["x_attributions"], np.float64)
    return np.concatenate([answer[f"{name}_attributions"] for name in NAMES], axis=-1).astype(np.float64)


def _example(model: Any, name: str) -> pd.DataFrame:
    """Rows such as those on which it was fitted."""
    if name.startswith("wrappers"):
        return SHARES
    if name.startswith("numbers"):
        return of_type(name.split(", ")[-1].split()[0])
    if "999" in name:
        return GAPS.fillna(-999.0)
    if name.endswith("categories") and "sklearn" not in name:
        codes = X.a.astype(int)
        return X.assign(a=pd.Categorical(codes % 5) if "XGBoost" in name else codes)
    if name in ("sklearn: poisson", "sklearn: gamma", "sklearn: tweedie"):
        return X / 32
    with_gaps = ("gaps", "indicator", "imput", "histograms", "missing", "classifier", "regressor")
    with warnings.catch_warnings(action="ignore"):
        try:
            takes = any(word in name for word in with_gaps) and bool(list(answers_of(model, GAPS[:K])))
        except Exception:  # it takes none
            takes = False
    return GAPS if takes else X
