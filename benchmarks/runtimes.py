"""Times one graph in ONNX Runtime and in OpenVINO, in turn in one process.

    python -m benchmarks.runtimes credit-softmax resnet50 --rounds 9

The graph is DeepSHAP of the predicted class, compiled for OpenVINO; ONNX Runtime's own is beside it.
"""

import itertools
import statistics
from collections.abc import Callable, Sequence
from functools import partial

import onnx

from benchmarks.arguments import parser_of, positive
from rationale.bench.cases import MODELS, Case
from rationale.bench.subjects import make_subject
from rationale.bench.timing import System, alternate
from rationale.compile import compile_model
from rationale.graph.runtime.openvino import OpenVinoRunner
from rationale.graph.runtime.session import Runner
from rationale.methods.propagation.deepshap import DeepShap
from rationale.schema.machine import Deployment, Runtime

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


def main(given: Sequence[str] | None = None) -> None:
    """Print a line for each network."""
    parser = parser_of(__doc__, many=True)
    parser.add_argument("--rounds", type=positive, default=9)
    asked = parser.parse_args(given)
    for model in asked.models or MODELS:
        times = alternate([System(name, run) for name, run in runs_of(case_of(model)).items()], asked.rounds)
        medians = {name: statistics.median(itertools.chain(*rounds)) for name, rounds in times.items()}
        print(f"{model}: {', '.join(f'{name} {1e3 * t:.2f} ms' for name, t in medians.items())}", flush=True)


if __name__ == "__main__":
    main()
