"""ONNX Runtime on this machine: on a GPU if it finds one, else on the CPU."""

from pathlib import Path

import onnxruntime as ort

from rationale.errors import RationaleError
from rationale.graph.runtime.session import register
from rationale.schema.machine import LARGE_BLOCKS, Provider

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"


def provider() -> Provider:
    """Return the provider for compiled graphs: a GPU's if ONNX Runtime has one."""
    if CUDA not in ort.get_available_providers():
        return "cpu"
    from rationale_service.engine.backends.devices import gpu_count  # needs the extra `serve`

    return "cuda" if gpu_count() else "cpu"


def session_of(
    model: str | bytes | Path, threads: int, *, on_cpu: bool = False, profile: Path | None = None
) -> ort.InferenceSession:
    """Return a file or a serialised model in ONNX Runtime, with the gateway's providers, or on the CPU.

    With `profile`, ONNX Runtime times each node; the file's name begins with that path.

    Raises:
        RationaleError: if CUDA cannot be started; ONNX Runtime would go on with the CPU.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    options.add_session_config_entry(*LARGE_BLOCKS)
    if profile:
        options.enable_profiling, options.profile_file_prefix = True, str(profile)
    if on_cpu or provider() == "cpu":
        register(options)  # rationale-kernels, unless RATIONALE_KERNELS=off
        return ort.InferenceSession(model, options, providers=[CPU])
    from rationale_service.engine.backends.devices import providers

    session = ort.InferenceSession(model, options, providers=providers("cuda:0"))
    if CUDA not in session.get_providers():
        raise RationaleError(
            "ONNX Runtime cannot start CUDA: install the CUDA and cuDNN that it was built for."
        )
    return session
