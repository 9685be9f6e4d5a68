"""Which process this is, and whether another one of the same machine still runs."""

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

_STARTED = 22  # the field of /proc/PID/stat with the time at which a process began
_ID = re.compile(r"(?P<machine>[\w.-]+)~(?P<process>\d+)~(?P<started>\d+)(~\w+)?")


@dataclass(frozen=True)
class Replica:
    """A process that follows the state.

    Attributes:
        id: `MACHINE~PROCESS~STARTED~TOKEN`.
    """

    id: str

    @property
    def process(self) -> str:
        """What begins the ids of all replicas in this process."""
        return self.id.rpartition("~")[0]

    def is_dead(self, other: str) -> bool:
        """Return whether a replica is known to run no more: one of this machine, whose process has ended."""
        found = _ID.match(other)
        if found is None or found["machine"] != _machine() or not Path("/proc/self/stat").is_file():
            return False
        return _started(int(found["process"])) != found["started"]

    def is_of_another_boot(self, other: str) -> bool:
        """Return whether a replica ran before this machine was started, or on another machine."""
        found = _ID.match(other)
        return found is not None and found["machine"].partition(".")[0] != _machine().partition(".")[0]


@dataclass(frozen=True)
class Lease:
    """What one process does for all.

    Attributes:
        holder: the replica's id.
        note: how far it is.
    """

    holder: str
    note: Mapping[str, Any]


def this_process() -> Replica:
    """Return a new replica in this process."""
    process = os.getpid()
    return Replica(f"{_machine()}~{process}~{_started(process)}~{secrets.token_hex(4)}")


@cache
def _machine() -> str:
    """Return what tells apart those who see each other's processes: the boot, and the namespace of PIDs."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}.{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:  # not Linux
        return re.sub(r"[^\w.-]", "-", socket.gethostname())


def _started(process: int) -> str:
    """Return when a process began, in ticks of the machine; "" where it runs no more."""
    with contextlib.suppress(OSError, IndexError):
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        if fields[0] not in ("Z", "X"):
            return fields[_STARTED - 3]
    return "" if Path("/proc/self/stat").is_file() else "0"
