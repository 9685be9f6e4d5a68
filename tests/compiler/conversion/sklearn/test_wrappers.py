"""Estimators that hold a fitted one, or that differ from scikit-learn's in the fit alone, and the like."""

import re
from collections.abc import Callable
from typing import Any

import catboost as cb
import lightgbm as lgb
import numpy as np
import pandas as pd
import pytest
import torch
import xgboost as xgb
from imblearn.ensemble import (
    BalancedBaggingClassifier,
    BalancedRandomForestClassifier,
    EasyEnsembleClassifier,
    RUSBoostClassifier,
)
from imblearn.over_sampling import SMOTE
from imblearn.pipeline import make_pipeline as sampled
from imblearn.under_sampling import RandomUnderSampler
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.ensemble import (
    GradientBoostingClassifier,
    RandomForestClassifier,
    RandomForestRegressor,
    RandomTreesEmbedding,
    StackingClassifier,
    VotingClassifier,
    VotingRegressor,
)
from sklearn.experimental import enable_halving_search_cv  # noqa: F401 (the import allows the halving searches)
from sklearn.feature_selection import RFE, RFECV, SequentialFeatureSelector
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import (
    FixedThresholdClassifier,
    GridSearchCV,
    HalvingGridSearchCV,
    HalvingRandomSearchCV,
    RandomizedSearchCV,
    TunedThresholdClassifierCV,
)
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier, RegressorChain
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import KBinsDiscretizer, QuantileTransformer, StandardScaler
from sklearn.semi_supervised import LabelSpreading, SelfTrainingClassifier
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier
from skorch import NeuralNetBinaryClassifier, NeuralNetClassifier, NeuralNetRegressor

from rationale import Auto, DeepShap, InvalidModelError, UnsupportedModelError, compile_model, convert
from rationale.conversion.files import read_fitted
from rationale.conversion.parity import LIMIT
from tests.compiler.conversion.data import compared_rows

pytestmark = pytest.mark.filterwarnings("ignore")

_RANDOM = np.random.default_rng(0)
X = pd.DataFrame(_RANDOM.integers(0, 40, (400, 5)) / 40, columns=list("abcde"))
Y = ((X["a"] > 0.5) ^ (X["b"] * X["c"] > 0.2)).astype(int)
WORDS = np.where(Y, "late", "paid")
THREE = Y + (X["d"] > 0.8)
TWO_TARGETS = np.stack([Y, X["d"] > 0.5], axis=1).astype(int)
ALL = np.stack([Y, X["d"] > 0.5, X["e"] < X["a"]], axis=1).astype(int)
AMOUNT = X["a"] * 3 + np.where(X["b"] > 0.3, X["c"], -X["d"])
SMALL: dict[str, Any] = {"n_estimators": 6, "max_depth": 3, "random_state": 0}
CAT: dict[str, Any] = {"iterations": 6, "depth": 3, "verbose": False, "allow_writing_files": False}
LINEAR, TREES, FOREST = (
    LogisticRegression(),
    GradientBoostingClassifier(**SMALL),
    RandomForestClassifier(**SMALL),
)
BOOSTER, CATS = xgb.XGBClassifier(**SMALL), cb.CatBoostClassifier(**CAT)
DEEPER: dict[str, Any] = {"max_depth": [2, 3]}
HALVED: dict[str, Any] = {"cv": 2, "min_resources": 100, "random_state": 0}  # else some folds have one class
BINS: dict[str, Any] = {"encode": "onehot", "quantile_method": "averaged_inverted_cdf"}


def frozen(model: Any, y: Any = Y) -> FrozenEstimator:
    return FrozenEstimator(clone(model).fit(X, y))


def searched(model: Any, **options: Any) -> RandomizedSearchCV:
    return RandomizedSearchCV(model, options or DEEPER, n_iter=2, cv=2, random_state=0)


MODELS: dict[str, tuple[Any, Any]] = {
    "search": (GridSearchCV(TREES, DEEPER, cv=2), Y),
    "random search": (searched(TREES), WORDS),
    "halving search": (HalvingGridSearchCV(TREES, DEEPER, **HALVED), Y),
    "random halving search": (HalvingRandomSearchCV(TREES, DEEPER, **HALVED), Y),
    "search for a booster": (searched(BOOSTER), Y),
    "search for LightGBM": (searched(lgb.LGBMClassifier(verbose=-1, **SMALL)), Y),
    "search for CatBoost": (searched(CATS, depth=[2, 3]), Y),
    "search for a number": (searched(Ridge(), alpha=[1, 2]), AMOUNT),
    "search in a pipeline": (make_pipeline(StandardScaler(), searched(LINEAR, C=[1, 2])), Y),
    "search for a pipeline": (
        searched(make_pipeline(StandardScaler(), LINEAR), logisticregression__C=[1, 2]),
        Y,
    ),
    "search in a search": (searched(searched(LINEAR, C=[1, 2]), n_iter=[1, 2]), Y),
    "search for a transformed target": (
        TransformedTargetRegressor(searched(Ridge(), alpha=[1, 2]), func=np.log1p, inverse_func=np.expm1),
        AMOUNT.abs(),
    ),
    "frozen": (frozen(TREES), Y),
    "frozen steps": (make_pipeline(FrozenEstimator(StandardScaler().fit(X)), frozen(LINEAR)), Y),
    "calibration of a fitted model": (CalibratedClassifierCV(frozen(TREES)), Y),
    "isotonic calibration of a fitted model": (CalibratedClassifierCV(frozen(FOREST), method="isotonic"), Y),
    "calibration of a fitted search": (CalibratedClassifierCV(frozen(searched(BOOSTER))), Y),
    "frozen vote": (VotingClassifier([("a", frozen(FOREST)), ("b", LINEAR)], voting="soft"), Y),
    "self training": (SelfTrainingClassifier(LINEAR), Y),
    "fixed threshold": (FixedThresholdClassifier(TREES, threshold=0.3), Y),
    "fixed threshold of words": (FixedThresholdClassifier(TREES, threshold=0.3, pos_label="late"), WORDS),
    "fixed threshold of margins": (FixedThresholdClassifier(LinearSVC(), threshold=0.3), Y),
    "the same for the first word": (
        FixedThresholdClassifier(LinearSVC(), threshold=0.3, pos_label="late"),
        WORDS,
    ),
    "tuned threshold": (TunedThresholdClassifierCV(TREES, cv=3), Y),
    "tuned threshold of a pipeline": (
        TunedThresholdClassifierCV(make_pipeline(StandardScaler(), LINEAR), cv=3),
        WORDS,
    ),
    "sampler": (sampled(StandardScaler(), SMOTE(random_state=0), FOREST), Y),
    "sampler in front": (sampled(RandomUnderSampler(random_state=0), TREES), WORDS),
    "sampler in a search": (
        searched(sampled(SMOTE(random_state=0), LINEAR), logisticregression__C=[1, 2]),
        Y,
    ),
    "sampler in a calibration": (CalibratedClassifierCV(sampled(SMOTE(random_state=0), FOREST), cv=2), Y),
    "sampler before a booster": (sampled(SMOTE(random_state=0), BOOSTER), Y),
    "balanced forest": (BalancedRandomForestClassifier(**SMALL), Y),
    "balanced bags": (BalancedBaggingClassifier(LINEAR, n_estimators=4, random_state=0), Y),
    "easy ensemble": (EasyEnsembleClassifier(n_estimators=4, random_state=0), Y),
    "undersampled boosting": (RUSBoostClassifier(n_estimators=4, random_state=0), Y),
    "weighted votes": (VotingClassifier([("a", LINEAR), ("b", FOREST)], voting="soft", weights=[1, 2]), Y),
    "weights of votes left out": (
        VotingClassifier(
            [("a", LINEAR), ("b", "drop"), ("c", FOREST)],
            voting="soft",
            weights=(1, 2, 3),
            flatten_transform=True,
        ),
        Y,
    ),
    "weighted hard votes": (
        VotingClassifier([("a", LINEAR), ("b", FOREST), ("c", TREES)], weights=[1, 2, 4]),
        Y,
    ),
    "weighted votes on a number": (
        VotingRegressor([("a", Ridge()), ("b", RandomForestRegressor(**SMALL))], weights=[1, 2]),
        AMOUNT,
    ),
    "CatBoost in a pipeline": (make_pipeline(StandardScaler(), CATS), WORDS),
    "CatBoost of three classes": (make_pipeline(StandardScaler(), CATS), THREE),
    "CatBoost of numbers": (make_pipeline(StandardScaler(), cb.CatBoostRegressor(**CAT)), AMOUNT),
    "CatBoost in a vote": (VotingClassifier([("a", CATS), ("b", FOREST)], voting="soft"), Y),
    "CatBoost in a stack": (StackingClassifier([("a", CATS), ("b", FOREST)], LINEAR, cv=2), Y),
    "CatBoost in a calibration": (CalibratedClassifierCV(CATS, cv=2), Y),
    "selection in turn": (
        make_pipeline(SequentialFeatureSelector(LINEAR, n_features_to_select=2, cv=2), LINEAR),
        Y,
    ),
    "a step that passes": (make_pipeline("passthrough", StandardScaler(), LINEAR), Y),
    "elimination": (RFE(FOREST, n_features_to_select=2), WORDS),
    "elimination by folds": (RFECV(LINEAR, cv=2), Y),
    "elimination twice": (make_pipeline(RFE(LINEAR, n_features_to_select=3), RFE(FOREST)), Y),
    "chain": (ClassifierChain(LINEAR), TWO_TARGETS),
    "chain in another order": (ClassifierChain(FOREST, order=[1, 0]), TWO_TARGETS),
    "chain in a circle": (ClassifierChain(FOREST, order=[1, 2, 0]), ALL),
    "chain of numbers in a circle": (
        RegressorChain(RandomForestRegressor(**SMALL), order=[2, 0, 1]),
        np.stack([AMOUNT, X["d"], X["a"] - X["e"]], axis=1),
    ),
    "chain of probabilities": (
        make_pipeline(StandardScaler(), ClassifierChain(LINEAR, chain_method="predict_proba")),
        TWO_TARGETS,
    ),
    "chain of numbers": (
        RegressorChain(RandomForestRegressor(**SMALL), order=[1, 0]),
        np.stack([AMOUNT, X["d"]], axis=1),
    ),
    "temperature": (CalibratedClassifierCV(TREES, method="temperature", cv=2), WORDS),
    "temperature of probabilities": (CalibratedClassifierCV(FOREST, method="temperature", cv=2), THREE),
    "temperature of three": (
        CalibratedClassifierCV(LINEAR, method="temperature", cv=2, ensemble=False),
        THREE,
    ),
    "bins": (make_pipeline(KBinsDiscretizer(4, **BINS), LINEAR), Y),
    "bins of columns": (
        make_pipeline(
            ColumnTransformer([("k", KBinsDiscretizer(4, **BINS), ["a", "b"])], remainder="passthrough"),
            LINEAR,
        ),
        Y,
    ),
    "leaves of random trees": (
        make_pipeline(RandomTreesEmbedding(n_estimators=4, max_depth=3, random_state=0), LINEAR),
        Y,
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_wrapper_answers_as_what_it_holds(name: str) -> None:
    model, y = MODELS[name]
    parity = convert(clone(model).fit(X, y), X).parity
    assert parity is not None
    assert compared_rows(parity, "mixtures")
    assert parity.relative < LIMIT
    assert not parity.labels


REFUSED: dict[str, tuple[Any, Any]] = {
    r"MultiOutputClassifier\b.*estimators_\[0\]": (
        MultiOutputClassifier(LINEAR),
        TWO_TARGETS,
    ),
    r"RandomForestClassifier\b.* targets": (FOREST, TWO_TARGETS),
    r"DecisionTreeClassifier\b.* targets": (DecisionTreeClassifier(), np.stack([THREE, Y], axis=1)),
    r"KNeighborsClassifier\b.* targets": (KNeighborsClassifier(), TWO_TARGETS),
    r"MLPClassifier\b.* targets": (MLPClassifier((4,), max_iter=5), TWO_TARGETS),
    r"MLPRegressor\b.*MultiOutputRegressor\(MLPRegressor\(": (
        MLPRegressor(hidden_layer_sizes=(4,), max_iter=5),
        np.stack([AMOUNT, X["d"]], axis=1),
    ),
    r"ClassifierChain\(chain_method='decision_function'\).*'predict'": (
        ClassifierChain(LINEAR, chain_method="decision_function"),
        TWO_TARGETS,
    ),
    r"KNeighborsClassifier\(weights='distance'\).*'uniform'": (KNeighborsClassifier(weights="distance"), Y),
    r"KNeighborsRegressor\(weights='distance'\).*'uniform'": (
        KNeighborsRegressor(weights="distance"),
        AMOUNT,
    ),
    r"TunedThresholdClassifierCV\(response_method='decision_function'\).*estimator_": (
        TunedThresholdClassifierCV(LINEAR, response_method="decision_function", cv=2),
        Y,
    ),
    r"FixedThresholdClassifier\(response_method='decision_function'\).*estimator_": (
        FixedThresholdClassifier(LINEAR, response_method="decision_function"),
        Y,
    ),
    r"QuantileTransformer\(output_distribution='normal'\).*'uniform'": (
        make_pipeline(QuantileTransformer(n_quantiles=50, output_distribution="normal"), LINEAR),
        Y,
    ),
    r"sklearn\.LabelSpreading\b.*docs/trees\.md": (
        VotingClassifier([("a", LabelSpreading()), ("b", LINEAR)], voting="soft"),
        Y,
    ),
}


@pytest.mark.parametrize("threshold", [0.0, -0.2])
def test_a_tuned_threshold_of_nothing_is_one_as_any_other(threshold: float) -> None:
    model = TunedThresholdClassifierCV(LinearSVC(), cv=2).fit(X, Y)
    model.best_threshold_ = threshold
    assert 0 < model.predict(X).mean() < 1
    parity = convert(model, X).parity
    assert parity is not None
    assert parity.labels == 0


@pytest.mark.parametrize("text", REFUSED)
def test_another_is_refused_by_name(text: str) -> None:
    model, y = REFUSED[text]
    with pytest.raises(UnsupportedModelError, match=text):
        convert(clone(model).fit(X, y), X)


def test_one_target_at_a_time_is_the_way_out() -> None:
    pipeline = make_pipeline(StandardScaler(), MultiOutputClassifier(LINEAR)).fit(X, TWO_TARGETS)
    for number, target in enumerate(pipeline.predict_proba(X)):
        single = make_pipeline(*pipeline[:-1], pipeline[-1].estimators_[number])
        assert np.allclose(single.predict_proba(X), target)
        parity = convert(single, X).parity
        assert parity is not None
        assert parity.relative < LIMIT


def test_categories_inside_of_a_pipeline_are_refused() -> None:
    table = X.assign(a=(X["a"] * 4).astype(int).astype(str))
    model = make_pipeline("passthrough", cb.CatBoostClassifier(cat_features=["a"], **CAT)).fit(table, Y)
    with pytest.raises(UnsupportedModelError, match=r"catboost\.CatBoostClassifier .*cat_features"):
        convert(model, table)


def test_a_search_without_a_fitted_model_says_so() -> None:
    model = GridSearchCV(LINEAR, {"C": [1, 2]}, cv=2, refit=False).fit(X, Y)
    with pytest.raises(InvalidModelError, match=r"GridSearchCV .*best_estimator_.* refit=True"):
        convert(model, X)


def test_conversion_leaves_the_model_as_it_is() -> None:
    model = VotingClassifier(
        [("a", sampled(SMOTE(random_state=0), FOREST)), ("b", frozen(LINEAR))], weights=[1, 2]
    )
    model.fit(X, Y)
    before = repr(model.estimators_), model.weights, model.predict(X).tolist()
    convert(model, X)
    assert before == (repr(model.estimators_), model.weights, model.predict(X).tolist())
    assert isinstance(model.estimators_[1], FrozenEstimator)


def _network(outputs: int, *last: torch.nn.Module) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.ReLU(), torch.nn.Linear(8, outputs), *last)


TABLE = X.to_numpy(np.float32)
EPOCHS: dict[str, Any] = {"max_epochs": 2, "verbose": 0}
NETS: dict[str, tuple[Callable[[], Any], Any]] = {
    "probabilities": (lambda: NeuralNetClassifier(_network(2, torch.nn.Softmax(-1)), **EPOCHS), Y.to_numpy()),
    "logits": (
        lambda: NeuralNetClassifier(_network(3), criterion=torch.nn.CrossEntropyLoss, **EPOCHS),
        THREE.to_numpy(),
    ),
    "one logit": (
        lambda: NeuralNetBinaryClassifier(_network(1, torch.nn.Flatten(0)), **EPOCHS),
        Y.to_numpy(np.float32),
    ),
    "numbers": (lambda: NeuralNetRegressor(_network(1), **EPOCHS), TABLE[:, :1]),
    "search": (
        lambda: GridSearchCV(
            NeuralNetClassifier(_network(2, torch.nn.Softmax(-1)), **EPOCHS), {"lr": [0.1]}, cv=2
        ),
        Y.to_numpy(),
    ),
}


@pytest.mark.parametrize("name", NETS)
def test_a_net_answers_what_skorch_says(name: str) -> None:
    net, y = NETS[name]
    model = net().fit(TABLE, y)
    compiled = compile_model(model, DeepShap(TABLE[:20]))
    assert compiled.manifest.parity is not None
    assert compiled.manifest.parity.model == "skorch.NeuralNet"
    answer = compiled.explain(TABLE[:7])["output"]
    assert np.abs(answer - model.predict_proba(TABLE[:7])).max() < LIMIT


def test_nets_that_are_refused() -> None:
    net = NeuralNetClassifier(_network(2, torch.nn.Softmax(-1)), **EPOCHS)
    with pytest.raises(InvalidModelError, match=r"skorch\.NeuralNetClassifier\b.* fitted"):
        convert(net, TABLE)
    pipeline = make_pipeline(StandardScaler(), net).fit(TABLE, Y.to_numpy())
    with pytest.raises(UnsupportedModelError, match=r"skorch.* pipeline\[:-1\]\.transform"):
        convert(pipeline, TABLE)
    assert convert(pipeline[-1], pipeline[:-1].transform(TABLE)).parity is not None


STUBS = {
    "statsmodels.genmod.generalized_linear_model": "scikit-learn's LinearRegression()",
    "h2o.estimators.gbm": "onnxmltools.convert_h2o",
    "pyspark.ml.classification": "onnxmltools.convert_sparkml",
    "keras.src.models.sequential": "model.export('model.onnx', format='onnx')",
    "tensorflow.keras": "tf2onnx.convert.from_keras",
    "pypmml.model": "PMML",
}


@pytest.mark.parametrize("module", STUBS)
def test_a_library_that_exports_its_own_is_named_with_the_way(module: str) -> None:
    stub = type("Model", (), {"__module__": module, "predict": lambda _, x: x})()
    for ask in (lambda: convert(stub, X), lambda: compile_model(stub, Auto(X))):
        with pytest.raises(InvalidModelError, match=re.escape(STUBS[module])):
            ask()


@pytest.mark.parametrize(
    ("ending", "exporter"), [("keras", "Keras"), ("h5", "Keras"), ("mojo", "h2o"), ("pmml", "PMML")]
)
def test_so_are_its_files(ending: str, exporter: str, tmp_path: Any) -> None:
    with pytest.raises(InvalidModelError, match=rf"model\.{ending}\b.*{exporter}"):
        read_fitted(tmp_path / f"model.{ending}")
