"""Devices of an entry's instances: the CPU, or the GPUs that CUDA shows."""

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
DeviceChoice = Literal["auto", "cpu", "cuda"]


class NoGpuError(RepositoryError):
    """A GPU that an entry or the setting demands, but that cannot be used."""


@dataclass(frozen=True)
class Devices:
    """The operator's choice of devices.

    Attributes:
        choice: auto follows each entry's `instance_group`, in which KIND_AUTO means the GPUs if there are
            any;
            cpu and cuda hold for all entries.
        cpu_fallback: True to run an entry on the CPU if its GPU cannot be used.
        cores: number of CPU cores.
        custom_ops: True to load libraries of kernels that entries bring.
        allow_drift: True to run entries whose answers to their probe rows differ from the recorded ones.
    """

    choice: DeviceChoice = "auto"
    cpu_fallback: bool = False
    cores: int = field(default_factory=available_cores)
    custom_ops: bool = False
    allow_drift: bool = False

    @staticmethod
    def chosen(settings: Settings) -> "Devices":
        """Return the devices that the settings choose for one of their processes."""
        cores = max(available_cores() // settings.workers, 1)
        return Devices(
            settings.device, settings.cpu_fallback, cores, settings.allow_custom_ops, settings.allow_drift
        )

    def of(self, entry: Entry) -> tuple[str, ...]:
        """Return the device of each instance, cpu or cuda:NUMBER. Raises NoGpuError."""
        return tuple(device for group in entry.instance_groups for device in self._devices_of_group(group))

    def insists(self, entry: Entry) -> bool:
        """Tell whether the lack of a usable GPU is an error."""
        wants_gpu = self.choice == "cuda" or any(group.kind == "KIND_GPU" for group in entry.instance_groups)
        return wants_gpu and not self.cpu_fallback

    def _devices_of_group(self, group: InstanceGroup) -> list[str]:
        gpus = gpu_count()
        gpu_optional = group.kind != "KIND_GPU" and not group.gpus
        if self.choice == "cpu" or (
            self.choice == "auto" and (group.kind == "KIND_CPU" or (gpu_optional and not gpus))
        ):
            return [CPU] * group.count
        missing = [number for number in group.gpus if number >= gpus]
        if missing or not gpus:
            raise NoGpuError(_absence(missing, gpus))
        return [f"cuda:{gpu}" for gpu in group.gpus or range(gpus) for _ in range(group.count)]


def gpu_count() -> int:
    """Return the number of GPUs that this ONNX Runtime may use, after CUDA_VISIBLE_DEVICES."""
    return _gpus_of_driver() if CUDA_PROVIDER in ort.get_available_providers() else 0


def providers(device: str) -> list[str | tuple[str, dict[str, Any]]]:
    """Return the execution providers for a session.

    They exclude TF32, which rounds the factors of matrix products to 10 bits: explanations would be no more
    complete than that.
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
    gpus = ctypes.c_int()
    failed = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(gpus))
    return 0 if failed else gpus.value


@functools.cache
def _preload() -> None:
    """Load CUDA and cuDNN from their wheels, if installed (ONNX Runtime 1.21 or newer)."""
    if hasattr(ort, "preload_dlls"):
        ort.preload_dlls()


def _absence(missing: list[int], gpus: int) -> str:
    if CUDA_PROVIDER not in ort.get_available_providers():
        return "it needs a GPU, and this onnxruntime has no CUDA: install onnxruntime-gpu instead"
    if not gpus:
        return "it needs a GPU, and CUDA's driver shows none"
    return f"it needs GPU {', '.join(map(str, missing))}: CUDA's driver shows {gpus}, counted from 0"
