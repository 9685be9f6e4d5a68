"""Identity of this process, and liveness of others on the same machine."""

import contextlib
import os
import re
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

_STARTED = 22  # field of /proc/PID/stat: the process's start time
_ID = re.compile(r"(?P<machine>[\w.-]+)~(?P<process>\d+)~(?P<started>\d+)(~\w+)?")


@dataclass(frozen=True)
class Replica:
    """A process that follows the state.

    Attributes:
        id: identifier, `MACHINE~PROCESS~STARTED~TOKEN`.
    """

    id: str

    @property
    def process(self) -> str:
        """Prefix of the ids of all replicas in this process."""
        return self.id.rpartition("~")[0]

    def is_dead(self, other: str) -> bool:
        """Tell whether a replica has certainly ended: it is of this machine, and its process has ended."""
        match = _ID.match(other)
        if match is None or match["machine"] != _machine() or not Path("/proc/self/stat").is_file():
            return False
        return _start_time(int(match["process"])) != match["started"]

    def is_of_another_boot(self, other: str) -> bool:
        """Tell whether a replica ran before this machine's last boot or on another machine."""
        match = _ID.match(other)
        return match is not None and match["machine"].partition(".")[0] != _machine().partition(".")[0]


@dataclass(frozen=True)
class Lease:
    """A task that one process does for all.

    Attributes:
        holder: id of the replica that does it.
        note: progress of the task.
    """

    holder: str
    note: Mapping[str, Any]


def this_process() -> Replica:
    """Return a new replica in this process."""
    process = os.getpid()
    return Replica(f"{_machine()}~{process}~{_start_time(process)}~{secrets.token_hex(4)}")


@cache
def _machine() -> str:
    """Return an id that processes share if they see each other's PIDs: the boot and the PID namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}.{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:  # not Linux
        return re.sub(r"[^\w.-]", "-", socket.gethostname())


def _start_time(process: int) -> str:
    """Return the start time of a process, in the machine's ticks; "" if it has ended."""
    with contextlib.suppress(OSError, IndexError):
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        if fields[0] not in ("Z", "X"):
            return fields[_STARTED - 3]
    return "" if Path("/proc/self/stat").is_file() else "0"
