"""The run of a model at compile time, in ONNX Runtime or, if that has no kernel, the reference evaluator."""

import ctypes
import functools
import math
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

from rationale.errors import CheckFailedError, InvalidModelError, InvalidOptionError, RationaleError
from rationale.graph.runtime.kernels import installed_kernels, load_kernels
from rationale.schema.locales import locale_advice
from rationale.schema.machine import LARGE_BLOCKS, available_cores
from rationale.schema.manifest import EXPLAIN, PLANNED_NODES

if TYPE_CHECKING:
    from onnx.reference import ReferenceEvaluator

MOST_SIZES = 8192  # elements of a constant that may determine a shape, such as the parts of a Split
SIZES_BYTES = 8 * MOST_SIZES  # constants up to this stay in the file: shape inference reads no others
EXTERNAL_BYTES = 250_000_000  # weights above this go beside the model: read from it, they take memory thrice
SMALL_BYTES = 1 << 20  # weights up to this: for a few runs, threads take longer to start than they save
MAPPED_BYTES = 50_000_000  # above this, a file beside the model that is mapped into memory avoids copies

LOAD_ERRORS = (
    ort.capi.onnxruntime_pybind11_state.Fail,
    ort.capi.onnxruntime_pybind11_state.InvalidArgument,
    ort.capi.onnxruntime_pybind11_state.InvalidGraph,
    ort.capi.onnxruntime_pybind11_state.InvalidProtobuf,
    ort.capi.onnxruntime_pybind11_state.RuntimeException,
)
_EVALUATOR_ERRORS = (RuntimeError, ValueError, LookupError, TypeError)  # also for a damaged model
BFLOAT16 = ir.DataType.BFLOAT16.numpy()
_BFLOAT16_TENSOR = "tensor(bfloat16)"
_OWN_FAULT = {
    "load": "The fault is in Rationale (or in your own rule), not in the model: please report it.",
    "run": "If the model itself accepts these rows, the fault is in Rationale (or in your own rule): please "
    "report it.",
}
_UNKNOWN = "is not a registered function/op"
_NO_LIBRARY = ". Give the library of its kernels (--custom-ops), or its definition as a function of the file"
NO_KERNEL = ort.capi.onnxruntime_pybind11_state.NotImplemented

_LIBRARIES: ContextVar[tuple[Path, ...]] = ContextVar("libraries", default=())

Arrays = Mapping[str, np.ndarray]
Run = Callable[..., dict[str, np.ndarray]]


class Runner:
    """A loaded model: `runner(inputs)` returns its outputs by name.

    Args:
        users_model: whether this is the user's model rather than a graph that the compiler made.
        fuse_integers: whether layers between DequantizeLinear and QuantizeLinear may run on integers.

    Raises:
        InvalidModelError: if the user's model cannot be loaded or run.
        CheckFailedError: if the compiler's graph cannot be loaded or run.
    """

    def __init__(
        self,
        model: "SerializedGraph | ir.Model",
        *,
        optimise: bool = True,
        threads: int | None = None,
        users_model: bool = False,
        fuse_integers: bool = True,
    ) -> None:
        self._run: Callable[..., Any]
        self._users_model = users_model
        self._faults: tuple[type[Exception], ...] = LOAD_ERRORS
        try:
            session = _session(model, optimise, threads, fuse_integers)
            self.outputs = [o.name for o in session.get_outputs()]
            edges = [*session.get_inputs(), *session.get_outputs()]
            opaque = any(edge.type == _BFLOAT16_TENSOR for edge in edges)
            self._run = functools.partial(_run_bfloat16, session) if opaque else session.run
        except NO_KERNEL as error:
            proto = model.load() if isinstance(model, ModelFile) else _proto(model)
            self._run, self._faults = self._evaluator(proto, error).run, _EVALUATOR_ERRORS
            self.outputs = [o.name for o in proto.graph.output]
        except LOAD_ERRORS as error:
            raise self._fault("load", error) from error

    def __call__(
        self, inputs: Mapping[str, np.ndarray], outputs: Sequence[str] | None = None
    ) -> dict[str, np.ndarray]:
        names = list(outputs or self.outputs)
        try:
            with np.errstate(all="ignore"):  # infinities are part of a graph's arithmetic
                return dict(zip(names, self._run(names, dict(inputs)), strict=True))
        except self._faults as error:
            raise self._fault("run", error) from error

    def _evaluator(self, proto: onnx.ModelProto, unknown: Exception) -> "ReferenceEvaluator":
        from onnx.reference import ReferenceEvaluator  # here, since it is rarely needed and slow to import

        try:
            return ReferenceEvaluator(proto)
        except _EVALUATOR_ERRORS:
            raise self._fault("run", unknown) from unknown

    def _fault(self, verb: str, error: Exception) -> RationaleError:
        reason = str(error).strip().splitlines()[0].rstrip(".")
        if self._users_model:
            advice = _NO_LIBRARY if _UNKNOWN in reason else ""
            whole = locale_advice(reason) or f"{reason}{advice}"
            return InvalidModelError(f"ONNX Runtime cannot {verb} the model: {whole}")
        text = (
            f"ONNX Runtime {ort.__version__} cannot {verb} the graph that Rationale compiled from the model"
        )
        return CheckFailedError(f"{text}: {locale_advice(reason) or f'{reason}. {_OWN_FAULT[verb]}'}")


def _run_bfloat16(
    session: ort.InferenceSession, names: list[str], inputs: Mapping[str, np.ndarray]
) -> list[np.ndarray]:
    """Call `session.run` for bfloat16 tensors, with arrays passed as 16-bit integers for numpy."""
    ort_values = {name: _ort_value(array) for name, array in inputs.items()}
    return [_array(value) for value in session.run_with_ort_values(names, ort_values)]


def _ort_value(array: np.ndarray) -> ort.OrtValue:
    if array.dtype != BFLOAT16:
        return ort.OrtValue.ortvalue_from_numpy(array)
    bits = np.ascontiguousarray(array).view(np.uint16)
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, onnx.TensorProto.BFLOAT16)


def _array(value: ort.OrtValue) -> np.ndarray:
    if value.data_type() != _BFLOAT16_TENSOR:
        return np.asarray(value.numpy())
    shape = value.shape()
    bits = (ctypes.c_uint16 * math.prod(shape)).from_address(value.data_ptr())
    return np.frombuffer(bits, BFLOAT16).reshape(shape).copy()


def _session(
    model: "SerializedGraph | ir.Model", optimise: bool, threads: int | None, fuse_integers: bool
) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads or available_cores()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # most run only a few times
    options.add_session_config_entry(*LARGE_BLOCKS)
    options.add_session_config_entry("session.disable_quant_qdq", "0" if fuse_integers else "1")
    options.log_severity_level = 4  # failures are raised anyway
    register(options)
    if not optimise:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    outline = model.outline if isinstance(model, ModelFile) else model
    options.enable_mem_reuse = len(_nodes(outline)) <= PLANNED_NODES
    providers = ["CPUExecutionProvider"]
    if not isinstance(model, ModelFile) and model_bytes(model) < MAPPED_BYTES:
        return ort.InferenceSession(_proto(model).SerializeToString(), options, providers=providers)
    file = model if isinstance(model, ModelFile) else ModelFile(as_ir(model))
    return ort.InferenceSession(str(file.path), options, providers=providers)


def _nodes(model: onnx.ModelProto | ir.Model) -> Sized:
    return model.graph if isinstance(model, ir.Model) else model.graph.node


def _proto(model: onnx.ModelProto | ir.Model) -> onnx.ModelProto:
    return ir.serde.serialize_model(model) if isinstance(model, ir.Model) else model


class ModelFile:
    """A model in a folder of its own, which is deleted with the last reference to this object.

    Its large constants are in a file beside it, which ONNX Runtime maps into memory instead of reading it.

    Attributes:
        outline: the model without the numbers of its large constants.
    """

    def __init__(self, model: ir.Model) -> None:
        folder = tempfile.mkdtemp(prefix="rationale-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)  # at the latest when Python ends
        self.path = Path(folder) / "model.onnx"
        _save_with_data(model, self.path)
        self.outline = onnx.load(self.path, load_external_data=False)

    def load(self) -> onnx.ModelProto:
        """Return the model with all its numbers in memory."""
        return onnx.load(self.path)


SerializedGraph = onnx.ModelProto | ModelFile


def serialize(model: ir.Model) -> SerializedGraph:
    """Put a large model into a file, so that its constants are not held twice during the compile.

    The call consumes the model: cycles in a graph would keep its constants until a garbage collection.
    """
    serialized = ModelFile(model) if model_bytes(model) >= MAPPED_BYTES else ir.serde.serialize_model(model)
    for graph in model.graphs():
        for value in graph.initializers.values():
            value.const_value = None
    return serialized


def outline(model: SerializedGraph) -> onnx.ModelProto:
    """Return the model; the numbers of its large constants may be missing."""
    return model.outline if isinstance(model, ModelFile) else model


def as_ir(model: onnx.ModelProto | ir.Model | ModelFile) -> ir.Model:
    if isinstance(model, ModelFile):
        return ir.load(model.path)
    return model if isinstance(model, ir.Model) else ir.from_proto(model)


def interface(model: ir.Model) -> onnx.ModelProto:
    """Return the inputs, outputs and versions of a model, without its nodes."""
    inputs, outputs = (
        [ir.serde.serialize_value(v) for v in values] for values in (model.graph.inputs, model.graph.outputs)
    )
    imports = [onnx.helper.make_opsetid(d, v) for d, v in model.graph.opset_imports.items()]
    graph = onnx.GraphProto(name=model.graph.name, input=inputs, output=outputs)
    return onnx.ModelProto(graph=graph, ir_version=model.ir_version, opset_import=imports)


def model_bytes(model: onnx.ModelProto | ir.Model) -> int:
    """Return the bytes of its weights, also in subgraphs."""
    if isinstance(model, ir.Model):
        tensors = [v.const_value for g in model.graphs() for v in g.initializers.values()]
        return sum(t.nbytes for t in tensors if t is not None)
    return _graph_bytes(model.graph)


def threads_of_few_runs(model: onnx.ModelProto | ir.Model) -> int | None:
    """Return the threads for a model that runs a few times: 1 for a small model, else None, all cores."""
    return 1 if model_bytes(model) <= SMALL_BYTES else None


def _graph_bytes(graph: onnx.GraphProto) -> int:
    inner = (g for node in graph.node for a in node.attribute for g in (a.g, *a.graphs))
    return sum(_tensor_bytes(t) for t in graph.initializer) + sum(map(_graph_bytes, inner))


def _tensor_bytes(tensor: onnx.TensorProto) -> int:
    width = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    return math.prod(tensor.dims) * width


def save(model: ir.Model, path: Path) -> None:
    """Write a model; large weights go to `<name>.data` beside it, which ONNX Runtime maps into memory.

    The limit is lower for a chunked graph: ONNX Runtime copies the body of a Scan several times.
    """
    chunked = any(n.op_type == "Scan" for n in model.graph.all_nodes())
    if model_bytes(model) >= (MAPPED_BYTES if chunked else EXTERNAL_BYTES):
        _save_with_data(model, path)
    else:
        ir.save(ir.external_data.load_to_model(model), path)


def _save_with_data(model: ir.Model, path: Path) -> None:
    """Write a model with its large constants in a file beside it."""
    ir.save(model, path, external_data=f"{path.name}.data", size_threshold_bytes=SIZES_BYTES)


# -- libraries of kernels ----------------------------------------------------------------------------------


@contextmanager
def kernels_of(libraries: Sequence[Path]) -> Iterator[None]:
    """Let sessions made in this context know the operators of these libraries."""
    token = _LIBRARIES.set(tuple(libraries))
    try:
        yield
    finally:
        _LIBRARIES.reset(token)


def register(options: ort.SessionOptions) -> None:
    """Register the context's libraries and rationale-kernels.

    Raises:
        InvalidOptionError: if ONNX Runtime cannot load one.
    """
    libraries = _LIBRARIES.get()
    for library in (*libraries, *installed_kernels(libraries)):
        try:
            load_kernels(options, library)
        except Exception as error:  # of several types
            reason = " ".join(str(error).split()).rstrip(".")
            raise InvalidOptionError(
                f"{library}: ONNX Runtime {ort.__version__} cannot load it as a library of kernels: {reason}"
                ". It must be a shared object for this machine that exports RegisterCustomOps."
            ) from error


# -- the gate of a one-shot graph --------------------------------------------------------------------------
#
# `explain` BOOL [N, 1] selects the rows to explain. `explained` BOOL [N, 1] marks the rows that are
# explained: the explanation of the others is zeros.


def with_gate(inputs: Arrays, answer: bool | np.ndarray = True) -> dict[str, np.ndarray]:
    """Return `inputs` with the gate beside them: `answer` for every row, or [N] answers."""
    rows = max((len(a) for a in inputs.values() if a.ndim), default=1)
    return {**inputs, EXPLAIN: np.broadcast_to(np.reshape(answer, (-1, 1)), (rows, 1)).copy()}


def with_open_gate(run: Run, model: onnx.ModelProto) -> Run:
    """Return `run` of a combined model; for a one-shot model, it opens the gate unless inputs set it."""
    if EXPLAIN not in {v.name for v in model.graph.input}:
        return run

    def run_explaining(inputs: Arrays, outputs: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        return run(inputs if EXPLAIN in inputs else with_gate(inputs), outputs)

    return run_explaining


def count_nodes(model: onnx.ModelProto) -> int:
    """Return the number of nodes, also in subgraphs; a call counts as the nodes of its function."""
    sizes = {
        (f.domain, f.name, f.overload): sum(n.op_type != "Constant" for n in f.node) for f in model.functions
    }

    def count(graph: onnx.GraphProto) -> int:
        inner = (g for node in graph.node for a in node.attribute for g in (a.g, *a.graphs))
        own = sum(sizes.get((node.domain, node.op_type, node.overload), 1) for node in graph.node)
        return own + sum(map(count, inner))

    return count(model.graph)
