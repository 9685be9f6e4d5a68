"""Times one graph in ONNX Runtime and in OpenVINO, in turn in one process.

    python -m benchmarks.runtimes credit-softmax resnet50 --rounds 9

The graph is DeepSHAP of the predicted class, compiled for OpenVINO; ONNX Runtime's own is beside it.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import onnx

from compiler.bench.cases import Case
from compiler.bench.subjects import NETWORKS, make_subject
from compiler.compile import compile_model
from compiler.deployment import Deployment, Runtime
from compiler.explain.methods import DeepShap
from compiler.runtime.openvino import OpenVinoRunner
from compiler.runtime.session import Runner

TABLE, IMAGE, TOKENS = (30,), (3, 64, 64), (16, 64)


def case_of(model: str) -> Case:
    """One row: of a table with 50 references, of an image or tokens with 10."""
    if model.startswith("credit"):
        return Case(model, TABLE, 50)
    return Case(model, TOKENS if model == "transformer" else IMAGE, 10)


def runs_of(case: Case) -> dict[str, Callable[[], object]]:
    subject = make_subject(case, 0)
    x, method = {"x": subject.rows.numpy()}, DeepShap(subject.references.numpy())

    def compiled_for(runtime: Runtime) -> onnx.ModelProto:
        deployment = Deployment(runtime=runtime)
        return compile_model(subject.model, method, targets="predicted", deployment=deployment).model

    own, portable = compiled_for("onnxruntime"), compiled_for("openvino")
    runners: dict[str, Callable[..., object]] = {
        "onnxruntime, its own graph": Runner(own),
        "onnxruntime, openvino's": Runner(portable),
        "openvino": OpenVinoRunner(portable),
    }
    return {name: partial(run, x) for name, run in runners.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="+", choices=list(NETWORKS))
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    for model in given.models:
        runs = runs_of(case_of(model))
        times: dict[str, list[float]] = {name: [] for name in runs}
        for turn in range(given.rounds + 2):
            for name, run in runs.items():
                start = time.perf_counter()
                run()
                if turn > 1:  # the first runs make buffers and kernels
                    times[name].append(time.perf_counter() - start)
        told = ", ".join(f"{name} {1e3 * statistics.median(t):.2f} ms" for name, t in times.items())
        print(f"{model}: {told}", flush=True)


if __name__ == "__main__":
    main()
