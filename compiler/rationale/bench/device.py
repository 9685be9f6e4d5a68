"""Where the systems run: on a GPU where ONNX Runtime finds one, else on CPU."""

from typing import Any

import onnxruntime as ort

from rationale.schema.machine import LARGE_BLOCKS, Provider

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"


def provider() -> Provider:
    """Return what graphs are compiled for."""
    return "cuda" if CUDA in ort.get_available_providers() else "cpu"


def session_of(model: str | bytes, threads: int) -> ort.InferenceSession:
    """Return a file or a serialised model in ONNX Runtime, on what `provider` says."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    options.add_session_config_entry(*LARGE_BLOCKS)
    return ort.InferenceSession(model, options, providers=[CUDA, CPU] if provider() == "cuda" else [CPU])


def torch_device() -> str:
    """PyTorch's, beside ONNX Runtime's: CPU where only one of them knows the GPU."""
    if provider() == "cpu":
        return "cpu"
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def on_device(moved: Any) -> Any:
    """Return a module or tensor of PyTorch on that device; itself where it is there already."""
    return moved.to(torch_device())


def gpu_name() -> str | None:
    """None where there is none, or PyTorch cannot say."""
    if torch_device() == "cpu":
        return None
    import torch

    return torch.cuda.get_device_name()
