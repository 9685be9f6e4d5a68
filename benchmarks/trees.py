"""An explanation of boosted trees beside the plain prediction and what else computes Shapley values of trees.

    python -m benchmarks.trees [xgboost lightgbm] [--references 100,1000] [--rows 1,64] [--rounds 5]

300 trees of depth 6 on 50 features, 2% of them missing; every system has one thread, and other rows in each
call: one row again and again would be answered from caches, the prediction most of all. `contributions` are
the booster's own, path-dependent as shapiq's are; shap's and woodelf's are over the same references as ours.
Without shapiq and woodelf-explainer installed, they are left out.
"""

import itertools
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from benchmarks.arguments import numbers, parser_of, positive
from rationale import TreeShap, compile_model
from rationale.bench.peers import quietly
from rationale.bench.timing import System, alternate, ratio
from rationale.terminal import reporting_errors

TREES, DEPTH, FEATURES, MISSING = 300, 6, 50, 0.02
TRAINED, KEPT = 4000, 2000
BOOSTERS = {"xgboost": "XGBClassifier", "lightgbm": "LGBMClassifier"}
PLAIN, OURS = "prediction", "ours"
Explain = Callable[[np.ndarray], Any]


def data() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows and labels to train with, and other rows."""
    random = np.random.default_rng(0)
    x = random.standard_normal((TRAINED + KEPT, FEATURES)).astype(np.float32)
    score = x @ random.standard_normal(FEATURES) / 2 + np.sin(3 * x[:, 0]) * x[:, 1] + (x[:, 2] > 0) * x[:, 3]
    label = score + random.standard_normal(len(x)) > 0
    x[random.random(x.shape) < MISSING] = np.nan
    return x[:TRAINED], label[:TRAINED].astype(int), x[TRAINED:]


def trained(name: str) -> tuple[Any, onnx.ModelProto]:
    """The booster, and what onnxmltools makes of it."""
    rows, labels, _ = data()
    more = {"num_leaves": 2**DEPTH, "verbose": -1} if name == "lightgbm" else {}
    estimator = getattr(import_module(name), BOOSTERS[name])
    grown = estimator(n_estimators=TREES, max_depth=DEPTH, n_jobs=1, learning_rate=0.1, **more)
    booster = grown.fit(rows, labels)
    types = import_module("onnxmltools.convert.common.data_types")
    convert = getattr(import_module("onnxmltools"), f"convert_{name}")
    return booster, convert(booster, initial_types=[("x", types.FloatTensorType([None, FEATURES]))])


def session(model: onnx.ModelProto) -> Explain:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3  # converters say less of shapes than there is
    made = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda x: made.run(None, {"x": x})


def own_contributions(name: str, booster: Any) -> Explain:
    if name == "xgboost":
        matrix = import_module("xgboost").DMatrix
        return lambda x: booster.get_booster().predict(matrix(x, nthread=1), pred_contribs=True)
    return lambda x: booster.predict(x, pred_contrib=True)


def by_shap(booster: Any, references: np.ndarray) -> Explain:
    shap = import_module("shap")
    masker = shap.maskers.Independent(references, max_samples=len(references))
    explainer = shap.TreeExplainer(booster, masker)
    return lambda x: explainer.shap_values(x, check_additivity=False)


def by_woodelf(booster: Any, references: np.ndarray) -> Explain:
    frame = import_module("pandas").DataFrame
    explainer = import_module("woodelf").WoodelfExplainer(booster, frame(references))
    return lambda x: explainer.shap_values(frame(x), verbose=False)


def by_shapiq(booster: Any, references: np.ndarray) -> Explain:
    del references  # it knows covers alone
    explainer = import_module("shapiq").TreeExplainer(booster, max_order=1, index="SV")
    return lambda x: [explainer.explain(row) for row in x]


ONE_BY_ONE = {"shapiq"}  # it explains rows one after the other: 64 take 64 times as long
PEERS = {"shap": by_shap, "woodelf": by_woodelf, "shapiq": by_shapiq}


def measured(name: str, counts: Sequence[int], rows: Sequence[int], rounds: int) -> Iterator[str]:
    """A line for each system, N and K."""
    with quietly():
        booster, model = trained(name)
    given = data()[2]
    yield f"\n{name} {import_module(name).__version__}: {TREES} trees × depth {DEPTH}, one thread, ms"
    heads = f"{'median':>12}{'least':>10}{'× prediction':>14}{'× ours':>9}{'set-up s':>10}"
    yield f"{'':16}{'K':>6}{'N':>5}{heads}"
    for count in counts:
        explains, setup_s = _explains(name, booster, model, given[:count])
        for n in rows:
            asked = {s: explain for s, explain in explains.items() if n == 1 or s not in ONE_BY_ONE}
            systems = [_system(s, explain, given, n) for s, explain in asked.items()]
            with quietly():
                times = alternate(systems, rounds)
            for s in asked:
                calls = [statistics.median(turn) for turn in times[s]]
                median, least = statistics.median(calls) * 1e3, min(map(min, times[s])) * 1e3
                against = (ratio(times[s], times[base]).median for base in (PLAIN, OURS))
                beside, ours = (f"{times_:.3g}" for times_ in against)
                told = f"{median:12.3f}{least:10.3f}{beside:>14}{ours:>9}{setup_s[s]:10.2f}"
                yield f"{s:16}{count:6}{n:5}{told}"


def _explains(
    name: str, booster: Any, model: onnx.ModelProto, references: np.ndarray
) -> tuple[dict[str, Explain], dict[str, float]]:
    """How each system answers rows, and the seconds until it can."""
    makers: dict[str, Callable[[], Explain]] = {
        PLAIN: lambda: session(model),
        OURS: lambda: session(compile_model(model, TreeShap(references)).model),
        "contributions": lambda: own_contributions(name, booster),
        **{peer: partial(make, booster, references) for peer, make in PEERS.items() if find_spec(peer)},
    }
    explains, setup_s = {}, {}
    for system, make in makers.items():
        began = time.perf_counter()
        try:
            with quietly():
                explains[system] = make()
                explains[system](references[:2])
        except Exception as error:  # a peer's own: the others are compared
            if system == OURS:
                raise
            explains.pop(system, None)
            warnings.warn(f"{system} explains no {name}: {error}", stacklevel=2)
        setup_s[system] = time.perf_counter() - began
    return explains, setup_s


def _system(name: str, explain: Explain, given: np.ndarray, n: int) -> System:
    batches = itertools.cycle([given[i : i + n] for i in range(0, len(given) - n + 1, n)])
    return System(name, lambda: explain(next(batches)))


def main(given: Sequence[str] | None = None) -> None:
    """Prints a line for each system."""
    parser = parser_of(__doc__, BOOSTERS, many=True)
    parser.add_argument("--references", type=numbers, default=[100, 1000], help="K, by commas (100,1000)")
    parser.add_argument("--rows", type=numbers, default=[1, 64], help="N, by commas (1,64)")
    parser.add_argument("--rounds", type=positive, default=5, help="in each, every system has its turn")
    asked = parser.parse_args(given)
    with reporting_errors():
        for name in asked.models or BOOSTERS:
            for line in measured(name, asked.references, asked.rows, asked.rounds):
                print(line, flush=True)


if __name__ == "__main__":
    main()
