"""The metrics of several processes that share a folder, in prometheus_client's multiprocess mode."""

import glob
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.multiprocess import MultiProcessCollector


class _Collector(MultiProcessCollector):
    """A collector that leaves out files which a process is just creating; the library fails at those."""

    def collect(self) -> Iterable[Metric]:
        """Return the metrics of all files that hold any."""
        metrics: Iterable[Metric] = MultiProcessCollector.merge(
            filter(_is_written, glob.glob(f"{self._path}/*.db"))
        )
        return metrics


def _is_written(file: str) -> bool:
    with suppress(FileNotFoundError):  # a gauge of a process that has just ended
        return Path(file).stat().st_size > 0
    return False


def metrics_of_processes(folder: str) -> CollectorRegistry:
    """Return a registry whose metrics add up those of all processes that write to `folder`."""
    together = CollectorRegistry()
    _Collector(together, folder)  # type: ignore[no-untyped-call]  # the library's own initialiser
    return together
