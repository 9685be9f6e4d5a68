"""Triton's `onnxruntime` backend, written for the Python backend: the same entries load, unchanged.

A stand-in for machines without Docker. It follows the C++ backend (triton-inference-server/
onnxruntime_backend) in all that a caller can see: the checks at load and their words, the parameters it
reads, one `session.run` per batch with every configured output, requested outputs alone in the answer,
and `onnx runtime error <code>: <message>`.

It differs in four points: it computes on the CPU alone, ignores `execution_accelerators`, shares no session
between instances, and refuses text that is not UTF-8 (ONNX Runtime's Python interface takes `str`).
"""

import json
import re
from itertools import groupby
from pathlib import Path

import numpy as np
import onnxruntime as ort
import triton_python_backend_utils as pb_utils
from onnxruntime.capi import onnxruntime_pybind11_state as ort_state

# ONNX Runtime's errors have no base class of their own.
ORT_ERRORS = tuple(
    value for value in vars(ort_state).values() if isinstance(value, type) and issubclass(value, Exception)
)
ORT_MESSAGE = re.compile(r"\[ONNXRuntimeError\] : (?P<code>\d+) : \w+ : (?P<message>.*)", re.DOTALL)

GRAPH_LEVELS = {
    -1: ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    1: ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    2: ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
}
EXECUTION_MODES = {0: ort.ExecutionMode.ORT_SEQUENTIAL, 1: ort.ExecutionMode.ORT_PARALLEL}
BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
ARENA_SHRINKAGE = "memory.enable_memory_arena_shrinkage"
DEVICE_ALLOCATOR = "session.use_device_allocator_for_initializers"

DATA_TYPES = {
    "tensor(bool)": "TYPE_BOOL",
    "tensor(uint8)": "TYPE_UINT8",
    "tensor(uint16)": "TYPE_UINT16",
    "tensor(uint32)": "TYPE_UINT32",
    "tensor(uint64)": "TYPE_UINT64",
    "tensor(int8)": "TYPE_INT8",
    "tensor(int16)": "TYPE_INT16",
    "tensor(int32)": "TYPE_INT32",
    "tensor(int64)": "TYPE_INT64",
    "tensor(float16)": "TYPE_FP16",
    "tensor(float)": "TYPE_FP32",
    "tensor(double)": "TYPE_FP64",
    "tensor(string)": "TYPE_STRING",
}


# --- settings -----------------------------------------------------------------------------------------


def model_path(args, config):
    """Return `model.onnx` of this version; a folder of that name holds the model and its external data."""
    name = config.get("default_model_filename") or "model.onnx"
    path = Path(args["model_repository"]) / args["model_version"] / name
    if path.is_dir():
        path = path / "model.onnx"
    if not path.exists():
        raise pb_utils.TritonModelException(
            f"unable to find '{path}' for model instance '{args['model_instance_name']}'"
        )
    return path


def string_parameters(config):
    return {key: value["string_value"] for key, value in config.get("parameters", {}).items()}


def integer(parameters, name):
    """Return the parameter as an integer, 0 if it is not given."""
    text = parameters.get(name, "0")
    try:
        return int(text)
    except ValueError:
        raise pb_utils.TritonModelException(f"failed to convert {name} '{text}' to an integer") from None


def boolean(parameters, name, default):
    text = parameters.get(name)
    if text is None:
        return default
    if text.lower() not in BOOLEANS:
        raise pb_utils.TritonModelException(f"failed to convert {name} '{text}' to a boolean")
    return BOOLEANS[text.lower()]


def session_options(config):
    parameters = string_parameters(config)
    options = ort.SessionOptions()
    level = int(config.get("optimization", {}).get("graph", {}).get("level", 0))
    options.graph_optimization_level = GRAPH_LEVELS.get(level, ort.GraphOptimizationLevel.ORT_ENABLE_ALL)
    mode = integer(parameters, "execution_mode")
    if mode not in EXECUTION_MODES:
        raise pb_utils.TritonModelException(
            "Invalid configuration value provided. Expected values for  execution_mode are 0 or 1 "
            f"but got {mode} ."
        )
    options.execution_mode = EXECUTION_MODES[mode]
    options.intra_op_num_threads = max(0, integer(parameters, "intra_op_thread_count"))
    options.inter_op_num_threads = max(0, integer(parameters, "inter_op_thread_count"))
    options.enable_cpu_mem_arena = boolean(parameters, "enable_mem_arena", options.enable_cpu_mem_arena)
    options.enable_mem_pattern = boolean(parameters, "enable_mem_pattern", options.enable_mem_pattern)
    for library in config.get("model_operations", {}).get("op_library_filename", []):
        options.register_custom_ops_library(library)  # relative to the server's folder, as in the C++ backend
    if DEVICE_ALLOCATOR in parameters:
        options.add_session_config_entry(DEVICE_ALLOCATOR, parameters[DEVICE_ALLOCATOR])
    return options


def run_options(config):
    options = ort.RunOptions()
    shrinkage = string_parameters(config).get(ARENA_SHRINKAGE)
    if shrinkage is not None:
        options.add_run_config_entry(ARENA_SHRINKAGE, shrinkage)
    return options


# --- checks at load -----------------------------------------------------------------------------------


def dims_of(tensor):
    """Return the shape ONNX Runtime knows, −1 for symbolic sizes."""
    return [size if isinstance(size, int) else -1 for size in tensor.shape or []]


def text(dims):
    return "[" + ",".join(str(size) for size in dims) + "]"


def check_dims(model, tensor, dims, batched, exact):
    """Check sizes (CompareDimsSupported): outputs must match exactly, inputs if the model's size is fixed."""
    have = dims_of(tensor)
    if not have:  # a scalar
        if any(size != 1 for size in dims):
            raise pb_utils.TritonModelException(
                f"unable to load model '{model}', scalar tensor '{tensor.name}', should only provide 1 in "
                f"the model configuration when the model doesn't support batching. "
                f"Model configuration provided: {text(dims)}."
            )
        return
    if batched and have[0] != -1:
        raise pb_utils.TritonModelException(
            f"model '{model}', tensor '{tensor.name}': for the model to support batching the shape should "
            "have at least 1 dimension and the first dimension must be -1; but shape expected by the model "
            f"is {text(have)}"
        )
    want = [-1, *dims] if batched else list(dims)
    same = len(have) == len(want) and all(
        a == b or (a == -1 and not exact) for a, b in zip(have, want, strict=True)
    )
    if not same:
        whole = (
            "an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, "
            f"making complete shape {text(want)}"
            if batched
            else f"shape {text(want)}"
        )
        raise pb_utils.TritonModelException(
            f"model '{model}', tensor '{tensor.name}': the model expects {len(have)} dimensions "
            f"(shape {text(have)}) but the model configuration specifies {len(want)} dimensions ({whole})"
        )


def check_tensor(model, entry, tensors, kind, batched):
    """Check one input or output of the configuration against the model's own."""
    name = entry["name"]
    if name not in tensors:
        allowed = ", ".join(sorted(tensors))
        raise pb_utils.TritonModelException(
            f"unexpected inference {kind} '{name}', allowed {kind}s are: {allowed}"
        )
    provided = DATA_TYPES.get(tensors[name].type, "TYPE_INVALID")
    if entry["data_type"] != provided:
        raise pb_utils.TritonModelException(
            f"unable to load model '{model}', configuration expects datatype {entry['data_type']} for "
            f"{kind} '{name}', model provides {provided}"
        )
    dims = entry["reshape"]["shape"] if "reshape" in entry else entry["dims"]
    check_dims(model, tensors[name], [int(size) for size in dims], batched, exact=kind == "output")


def check_config(config, session):
    """Raise TritonModelException if the configuration and the model disagree."""
    model, batched = config["name"], config["max_batch_size"] > 0
    inputs = config["input"]
    required = [entry for entry in inputs if not entry.get("optional")]
    if batched and len(required) < len(inputs):
        name = next(entry["name"] for entry in inputs if entry.get("optional"))
        raise pb_utils.TritonModelException(
            f"unable to load model '{model}', optional input '{name}' is not supported for models that "
            "support batching"
        )
    if len(session.get_inputs()) != len(required):
        raise pb_utils.TritonModelException(
            f"unable to load model '{model}', configuration expects {len(required)} inputs, model provides "
            f"{len(session.get_inputs())}"
        )
    tensors = {x.name: x for x in (*session.get_inputs(), *session.get_overridable_initializers())}
    for entry in inputs:
        check_tensor(model, entry, tensors, "input", batched)
    tensors = {x.name: x for x in session.get_outputs()}
    for entry in config["output"]:
        check_tensor(model, entry, tensors, "output", batched)


# --- requests -----------------------------------------------------------------------------------------


def ort_error(error):
    """Return `onnx runtime error <code>: <message>`, as the C++ backend spells it."""
    match = ORT_MESSAGE.search(str(error))
    if match is None:
        return f"onnx runtime error 1: {error}"
    return f"onnx runtime error {match['code']}: {match['message']}"


def read_value(tensor):
    """Return the tensor as ONNX Runtime takes it; BYTES become `str`. Raise UnicodeDecodeError."""
    value = tensor.as_numpy()
    if value.dtype != np.object_:
        return value
    decoded = [item.decode("utf-8") for item in value.ravel()]
    return np.array(decoded, dtype=np.object_).reshape(value.shape)


def row_shapes(feed):
    """Return the shapes that requests of one `session.run` must have in common."""
    return tuple((name, value.shape[1:]) for name, value in sorted(feed.items()))


def refusal(message, code=None):
    """Return a response with an error of its own: one TritonError in two responses hangs the stub."""
    # The stub adds TritonError to pb_utils after this file was imported: no default argument can name it.
    code = pb_utils.TritonError.INTERNAL if code is None else code
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(message, code))


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        if args["model_instance_kind"] == "GPU":
            pb_utils.Logger.log_warn(f"{config['name']}: this backend computes on the CPU alone")
        try:
            self.session = ort.InferenceSession(
                str(model_path(args, config)), session_options(config), providers=["CPUExecutionProvider"]
            )
        except ORT_ERRORS as error:
            raise pb_utils.TritonModelException(ort_error(error)) from None
        check_config(config, self.session)
        self.run_options = run_options(config)
        self.batched = config["max_batch_size"] > 0
        self.scalars = {x.name for x in self.session.get_inputs() if not dims_of(x)}
        self.output_dims = {
            entry["name"]: [int(size) for size in entry["dims"]] for entry in config["output"]
        }

    def execute(self, requests):
        """Return one response per request, in order."""
        responses = [None] * len(requests)
        feeds = {}
        for index, request in enumerate(requests):
            try:
                feeds[index] = {x.name(): read_value(x) for x in request.inputs()}
            except UnicodeDecodeError as error:
                responses[index] = refusal(
                    f"a BYTES input is not UTF-8: {error}", pb_utils.TritonError.INVALID_ARG
                )
        for group in self.groups(feeds):
            answers = self.answer([requests[i] for i in group], [feeds[i] for i in group])
            for index, response in zip(group, answers, strict=True):
                responses[index] = response
        return responses

    def groups(self, feeds):
        """Return indices of the requests that run together: those whose rows have equal shapes."""
        if not self.batched:
            return [[index] for index in feeds]

        def key(index):
            return row_shapes(feeds[index])

        return [list(group) for _, group in groupby(sorted(feeds, key=key), key=key)]

    def answer(self, requests, feeds):
        """Return responses of requests that run as one batch."""
        try:
            values = self.run(feeds)
        except ORT_ERRORS as error:
            return [refusal(ort_error(error)) for _ in requests]
        if not self.batched:
            return [self.response(request, values, slice(None)) for request in requests]
        rows = [next(iter(feed.values())).shape[0] for feed in feeds]
        wrong = [f"'{name}' has {v.shape[:1]}" for name, v in values.items() if v.shape[:1] != (sum(rows),)]
        if wrong:
            return [refusal(f"outputs do not follow the batch of {sum(rows)}: {wrong}") for _ in requests]
        ends = np.cumsum(rows)
        return [
            self.response(request, values, slice(end - count, end))
            for request, count, end in zip(requests, rows, ends, strict=True)
        ]

    def run(self, feeds):
        """Return every configured output of the joined batch, by name, as the C++ backend computes them."""
        feed = feeds[0]
        if len(feeds) > 1:
            feed = {name: np.concatenate([other[name] for other in feeds]) for name in feed}
        feed = {name: value.reshape(()) if name in self.scalars else value for name, value in feed.items()}
        values = self.session.run(list(self.output_dims), feed, self.run_options)
        return {
            name: value if np.ndim(value) else np.reshape(value, dims)
            for (name, dims), value in zip(self.output_dims.items(), values, strict=True)
        }

    def response(self, request, values, rows):
        requested = request.requested_output_names()
        return pb_utils.InferenceResponse(
            output_tensors=[pb_utils.Tensor(n, v[rows]) for n, v in values.items() if n in requested]
        )
