"""Running a model at compile time: ONNX Runtime, or the reference evaluator where that has no kernel."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

from compiler.errors import InvalidModelError

if TYPE_CHECKING:
    from onnx.reference import ReferenceEvaluator

EXTERNAL_BYTES = 1_500_000_000  # protobuf ends at 2 GB; weights above this go beside the model

_LOAD_ERRORS = (
    ort.capi.onnxruntime_pybind11_state.Fail,
    ort.capi.onnxruntime_pybind11_state.InvalidArgument,
    ort.capi.onnxruntime_pybind11_state.InvalidGraph,
    ort.capi.onnxruntime_pybind11_state.InvalidProtobuf,
    ort.capi.onnxruntime_pybind11_state.RuntimeException,
)
_NO_KERNEL = ort.capi.onnxruntime_pybind11_state.NotImplemented


class Runner:
    """A loaded model: `runner(inputs)` returns its outputs by name."""

    def __init__(self, model: onnx.ModelProto | ir.Model, *, optimise: bool = True) -> None:
        self._session: ort.InferenceSession | None = None
        self._evaluator: ReferenceEvaluator | None = None
        try:
            self._session = _session(model, optimise)
            self.outputs = [o.name for o in self._session.get_outputs()]
        except _NO_KERNEL as error:
            proto = ir.to_proto(model) if isinstance(model, ir.Model) else model
            self._evaluator = _evaluator(proto, _first_line(error))
            self.outputs = [o.name for o in proto.graph.output]
        except _LOAD_ERRORS as error:
            raise InvalidModelError(f"ONNX Runtime cannot load the model: {_first_line(error)}") from error

    def __call__(
        self, inputs: Mapping[str, np.ndarray], outputs: Sequence[str] | None = None
    ) -> dict[str, np.ndarray]:
        names = list(outputs or self.outputs)
        engine = self._session or self._evaluator
        assert engine is not None
        try:
            return dict(zip(names, engine.run(names, dict(inputs)), strict=True))
        except _LOAD_ERRORS as error:
            raise InvalidModelError(f"ONNX Runtime cannot run the model: {_first_line(error)}") from error


def _evaluator(proto: onnx.ModelProto, reason: str) -> "ReferenceEvaluator":
    from onnx.reference import ReferenceEvaluator  # here, since it is rarely needed and slow to import

    try:
        return ReferenceEvaluator(proto)
    except (RuntimeError, NotImplementedError) as error:
        raise InvalidModelError(f"ONNX Runtime cannot run the model: {reason}") from error


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0]


def _session(model: onnx.ModelProto | ir.Model, optimise: bool) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4  # what fails is raised
    if not optimise:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    providers = ["CPUExecutionProvider"]
    if _size(model) < EXTERNAL_BYTES:
        proto = ir.to_proto(model) if isinstance(model, ir.Model) else model
        return ort.InferenceSession(proto.SerializeToString(), options, providers=providers)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        large = model if isinstance(model, ir.Model) else ir.from_proto(model)
        save(large, path)
        return ort.InferenceSession(str(path), options, providers=providers)


def _size(model: onnx.ModelProto | ir.Model) -> int:
    if isinstance(model, onnx.ModelProto):
        return sum(len(t.raw_data) for t in model.graph.initializer)
    return sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value is not None)


def save(model: ir.Model, path: Path) -> None:
    """Writes a model; weights go to `<name>.data` beside it where protobuf could not hold them."""
    external = f"{path.name}.data" if _size(model) >= EXTERNAL_BYTES else None
    ir.save(model, path, external_data=external)


def run_model(
    model: onnx.ModelProto | ir.Model, inputs: Mapping[str, np.ndarray], *, optimise: bool = True
) -> dict[str, np.ndarray]:
    return Runner(model, optimise=optimise)(inputs)
