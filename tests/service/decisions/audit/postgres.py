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
    def __init__(self, folder: Path, binaries: Path, port: int | None = None) -> None:
        """
        Args:
            port: of 127.0.0.1, if it is reached by TCP too.
        """
        self._folder, self._binaries, self._port = folder, binaries, port
        # It does not run as root.
        self._as: dict[str, Any] = {"user": "postgres", "group": "postgres"} if os.geteuid() == 0 else {}

    def make(self) -> None:
        if self._as:
            shutil.chown(self._folder, **self._as)
        self.run("initdb", "-D", "data", "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--no-sync")

    def start(self) -> None:
        # Without fsync: no test ends the system.
        address = "" if self._port is None else "127.0.0.1"
        options = f"-k {self._folder} -c listen_addresses='{address}' -c fsync=off"
        self.run("pg_ctl", "-D", "data", "-w", "-l", "log", "-o", options, "start")

    def stop(self) -> None:
        self.run("pg_ctl", "-D", "data", "-w", "-m", "immediate", "stop")

    def processes(self) -> list[psutil.Process]:
        main = psutil.Process(int((self._folder / "data" / "postmaster.pid").read_text().split()[0]))
        return [main, *main.children()]

    def send(self, number: signal.Signals) -> None:
        """To all its processes: SIGSTOP freezes it, SIGCONT has it go on."""
        for process in self.processes():
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
        end = "" if self._port is None else f"127.0.0.1:{self._port}"
        host = f"host={self._folder}&" if self._port is None else ""
        return f"postgresql://postgres:secret@{end}/postgres?{host}options=-csearch_path%3D{name}"

    def new_database(self, name: str, encoding: str = "UTF8") -> str:
        """Its URL: for what is dumped as a whole."""
        of_its_own = ("--template=template0", f"--encoding={encoding}", "--locale=C")
        self.run("createdb", "-h", str(self._folder), "-U", "postgres", *of_its_own, name)
        return f"postgresql://postgres:secret@/{name}?host={self._folder}"

    def drop_database(self, name: str) -> None:
        self.run("dropdb", "-h", str(self._folder), "-U", "postgres", "--force", name)

    def run(self, program: str, *arguments: str) -> None:
        command = [str(self._binaries / program), *arguments]
        environment = {**os.environ, **({} if self._port is None else {"PGPORT": str(self._port)})}
        subprocess.run(
            command, cwd=self._folder, check=True, stdout=subprocess.DEVNULL, env=environment, **self._as
        )


@contextlib.contextmanager
def postgres(port: int | None = None) -> Iterator[Postgres]:
    binaries = Path(need("PostgreSQL")).parent
    with tempfile.TemporaryDirectory(prefix="postgres-") as folder:
        server = Postgres(Path(folder), binaries, port)
        server.make()
        server.start()
        try:
            yield server
        finally:
            with contextlib.suppress(subprocess.CalledProcessError):  # a test may have stopped it
                server.stop()
