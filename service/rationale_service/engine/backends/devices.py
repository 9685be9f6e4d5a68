"""Where the instances of an entry run: on the CPU, or on the GPUs that CUDA shows."""

import ctypes
import functools
from dataclasses import dataclass, field
from typing import Any, Literal

import onnxruntime as ort

from rationale.errors import RepositoryError
from rationale.schema.machine import available_cores
from rationale_service.repository.entry import Entry, InstanceGroup
from rationale_service.settings import Settings

CPU = "cpu"
CUDA_PROVIDER, CPU_PROVIDER = "CUDAExecutionProvider", "CPUExecutionProvider"
Wanted = Literal["auto", "cpu", "cuda"]


class NoGpuError(RepositoryError):
    """A GPU that an entry, or the setting, asks for cannot be used."""


@dataclass(frozen=True)
class Devices:
    """What the operator wants.

    Attributes:
        wanted: auto: as each entry's `instance_group` says, where KIND_AUTO is the GPUs if there are any;
            else all entries there.
        cpu_fallback: whether what asks for a GPU runs on the CPU where that cannot be used.
        cores: of the CPU.
        custom_ops: whether libraries of kernels are loaded that entries bring.
        allow_drift: whether entries run that answer their probe rows otherwise than is due.
    """

    wanted: Wanted = "auto"
    cpu_fallback: bool = False
    cores: int = field(default_factory=available_cores)
    custom_ops: bool = False
    allow_drift: bool = False

    @staticmethod
    def chosen(settings: Settings) -> "Devices":
        """Return what the settings choose, for one of their processes."""
        cores = max(available_cores() // settings.workers, 1)
        return Devices(
            settings.device, settings.cpu_fallback, cores, settings.allow_custom_ops, settings.allow_drift
        )

    def of(self, entry: Entry) -> tuple[str, ...]:
        """Return the device of each instance, cpu or cuda:NUMBER. Raises NoGpuError."""
        return tuple(device for group in entry.instance_groups for device in self._of_group(group))

    def insists(self, entry: Entry) -> bool:
        """Return whether it is an error that a GPU cannot be used."""
        wants_gpu = self.wanted == "cuda" or any(group.kind == "KIND_GPU" for group in entry.instance_groups)
        return wants_gpu and not self.cpu_fallback

    def _of_group(self, group: InstanceGroup) -> list[str]:
        count = gpu_count()
        optional = group.kind != "KIND_GPU" and not group.gpus
        if self.wanted == "cpu" or (
            self.wanted == "auto" and (group.kind == "KIND_CPU" or (optional and not count))
        ):
            return [CPU] * group.count
        missing = [number for number in group.gpus if number >= count]
        if missing or not count:
            raise NoGpuError(_absence(missing, count))
        return [f"cuda:{gpu}" for gpu in group.gpus or range(count) for _ in range(group.count)]


def gpu_count() -> int:
    """Return the GPUs that this ONNX Runtime may use, after CUDA_VISIBLE_DEVICES."""
    return _gpus_of_driver() if CUDA_PROVIDER in ort.get_available_providers() else 0


def providers(device: str) -> list[str | tuple[str, dict[str, Any]]]:
    """Return the execution providers as a session takes them.

    They are without TF32, which rounds the factors of matrix products to 10 bits: explanations would
    add up no better.
    """
    if device == CPU:
        return [CPU_PROVIDER]
    _preload()
    return [(CUDA_PROVIDER, {"device_id": device.removeprefix("cuda:"), "use_tf32": "0"}), CPU_PROVIDER]


@functools.cache
def _gpus_of_driver() -> int:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int()
    failed = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    return 0 if failed else count.value


@functools.cache
def _preload() -> None:
    """Load CUDA and cuDNN from their wheels, where those are installed (ONNX Runtime 1.21 or newer)."""
    if hasattr(ort, "preload_dlls"):
        ort.preload_dlls()


def _absence(missing: list[int], count: int) -> str:
    if CUDA_PROVIDER not in ort.get_available_providers():
        return "a GPU is asked for, and this onnxruntime has no CUDA: install onnxruntime-gpu in its place"
    if not count:
        return "a GPU is asked for, and CUDA's driver shows none"
    return f"GPU {', '.join(map(str, missing))} is asked for, and CUDA's driver shows {count}, counted from 0"
