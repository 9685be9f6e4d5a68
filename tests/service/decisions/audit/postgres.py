"""A PostgreSQL of a test's own: Debian's package, in a folder of its own, on a Unix socket."""

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from tests.needs import need

_numbers = itertools.count()


class Postgres:
    def __init__(self, folder: Path, binaries: Path) -> None:
        self._folder, self._binaries = folder, binaries
        # It does not run as root.
        self._as: dict[str, Any] = {"user": "postgres", "group": "postgres"} if os.geteuid() == 0 else {}

    def make(self) -> None:
        if self._as:
            shutil.chown(self._folder, **self._as)
        self.run("initdb", "-D", "data", "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--no-sync")

    def start(self) -> None:
        # Without fsync: no test ends the system.
        options = f"-k {self._folder} -c listen_addresses='' -c fsync=off"
        self.run("pg_ctl", "-D", "data", "-w", "-l", "log", "-o", options, "start")

    def stop(self) -> None:
        self.run("pg_ctl", "-D", "data", "-w", "-m", "immediate", "stop")

    def send(self, number: signal.Signals) -> None:
        """To all its processes: SIGSTOP freezes it, SIGCONT has it go on."""
        main = psutil.Process(int((self._folder / "data" / "postmaster.pid").read_text().split()[0]))
        for process in (main, *main.children()):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """It is there, and does nothing."""
        self.send(signal.SIGSTOP)
        try:
            yield
        finally:
            self.send(signal.SIGCONT)

    def new_schema(self) -> str:
        """Its URL: to be a trail's alone. A database would be hundreds of files."""
        name = f"audit_{next(_numbers)}"
        self.run("psql", "-h", str(self._folder), "-U", "postgres", "-c", f"CREATE SCHEMA {name}")
        return f"postgresql://postgres:secret@/postgres?host={self._folder}&options=-csearch_path%3D{name}"

    def new_database(self, name: str, encoding: str = "UTF8") -> str:
        """Its URL: for what is dumped as a whole."""
        of_its_own = ("--template=template0", f"--encoding={encoding}", "--locale=C")
        self.run("createdb", "-h", str(self._folder), "-U", "postgres", *of_its_own, name)
        return f"postgresql://postgres:secret@/{name}?host={self._folder}"

    def drop_database(self, name: str) -> None:
        self.run("dropdb", "-h", str(self._folder), "-U", "postgres", "--force", name)

    def run(self, program: str, *arguments: str) -> None:
        command = [str(self._binaries / program), *arguments]
        subprocess.run(command, cwd=self._folder, check=True, stdout=subprocess.DEVNULL, **self._as)


@contextlib.contextmanager
def postgres() -> Iterator[Postgres]:
    binaries = Path(need("PostgreSQL")).parent
    with tempfile.TemporaryDirectory(prefix="postgres-") as folder:
        server = Postgres(Path(folder), binaries)
        server.make()
        server.start()
        try:
            yield server
        finally:
            with contextlib.suppress(subprocess.CalledProcessError):  # a test may have stopped it
                server.stop()
