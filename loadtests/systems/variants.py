"""The compared systems, each in a few settings; only a system's best setting counts."""

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from loadtests.load.expected import EXPECTED, REPOSITORY
from loadtests.systems.process import Server, gateway, started

OURS = "rationale"


@dataclass(frozen=True)
class SystemSettings:
    """Settings of a system: `threads` of a computation, and `workers`, the number that run at a time."""

    system: str
    threads: int
    workers: int

    @property
    def label(self) -> str:
        return f"{self.system}, {self.shape}"

    @property
    def shape(self) -> str:
        """The parallelism, such as `2 × 1 thread`: computations at a time × threads of each."""
        return f"{self.workers} × {self.threads} thread{'s' if self.threads > 1 else ''}"


def variants(system: str, cores: int) -> list[SystemSettings]:
    """Return the settings to try: one computation on each core, one on all cores, and one core alone."""
    shapes = dict.fromkeys([(1, cores), (cores, 1), (1, 1)])
    return [SystemSettings(system, threads, workers) for threads, workers in shapes]


@contextlib.contextmanager
def serving(variant: SystemSettings, folder: Path) -> Iterator[Server]:
    """Yield the system on a prepared workload, ready for requests."""
    if variant.system == OURS:
        configure(folder / REPOSITORY, variant)
        with gateway(folder / REPOSITORY) as server:
            yield server
        return
    settings = ["--threads", str(variant.threads), "--workers", str(variant.workers)]
    command = [sys.executable, "-m", "loadtests.systems.baselines", variant.system, str(folder), *settings]
    with started(command, {}) as server:
        yield server


def expected_of(system: str, folder: Path) -> str:
    """Return the file with this system's expected answers."""
    file = f"expected-{system}.npz"
    return file if (folder / file).exists() else EXPECTED


def configure(repository: Path, variant: SystemSettings) -> None:
    """Set the threads and instances of every entry, like an operator."""
    for path in repository.glob("*/config.pbtxt"):
        config = text_format.Parse(path.read_text(), model_config_pb2.ModelConfig())
        config.instance_group[0].count = variant.workers
        config.parameters["intra_op_thread_count"].string_value = str(variant.threads)
        path.write_text(text_format.MessageToString(config))
