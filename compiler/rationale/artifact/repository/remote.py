"""A model repository in an object storage: copied into a folder of this machine, and read from there.

    FOLDER/
    ├── repository/NAME       the entry to read: a link, replaced at one moment
    ├── content/KEY/NAME      the entry as it was pulled, never changed
    └── content/KEY/files.json  the storage's listing of its files, so that none is downloaded twice

A model and its explainers change together or not at all: manifests hold the digests of the graphs that were
written with them.
"""

import functools
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rationale.artifact.repository.digest import graph_digest
from rationale.artifact.repository.folder import hold_lock
from rationale.distribution import install
from rationale.errors import InvalidOptionError, RepositoryError
from rationale.schema.manifest import EXPLAIN_SUFFIX, FILE_NAME, Manifest

Files = Mapping[str, str]  # an entry's files: a mark that changes with the content, by path
_LOOK_S = 15.0  # for a list of files: a storage that does not answer must not hold up a start
_SLOWEST = 1e6  # bytes a second of a download
_FILES = "files.json"
_REASON = 300  # characters of a library's message
# Attributes by which storages identify a file's content, best first; else the time of change.
_MARKS = ("ETag", "etag", "md5Hash", "content_md5", "checksum")
_TIMES = ("LastModified", "last_modified", "updated", "mtime", "modified")


class UnreachableError(RepositoryError):
    """A storage that does not answer, or holds nothing."""


def without_password(url: str) -> str:
    """Return a URL without a password."""
    return re.sub(r"//[^/@]*@", "//", url)


class RemoteRepository:
    """A repository at a URL and its copy. Every method blocks; processes that share the copy take turns.

    Attributes:
        name: the URL, without a password.
        entries: the folder to read.
        refused: the reasons why changed entries keep their old version here, by name.
        fault: the reason why the copy may be older than the storage; None if it is current.
    """

    def __init__(self, url: str, folder: Path) -> None:
        """Set the URL and the folder; the storage is not asked yet.

        Raises:
            InvalidOptionError: if this is no URL of a storage, or the library for it is not installed.
        """
        try:
            from fsspec.registry import get_filesystem_class  # type: ignore[import-untyped]

            get_filesystem_class(url.partition("://")[0])
        except (ImportError, ValueError) as error:
            raise InvalidOptionError(
                f"repository {without_password(url)}: must be a folder, or a URL such as s3://BUCKET/FOLDER "
                f"or file:///FOLDER, which needs a package: {install('s3')}, or fsspec's for it: {error}"
            ) from error
        self._url = url
        self.name = without_password(url)
        self.folder = folder
        self.entries = folder / "repository"
        self._content = folder / "content"
        self.refused: dict[str, str] = {}
        self.fault: str | None = None
        self._is_checked = False  # whether the files were compared with the pulled ones

    def list_entries(self) -> dict[str, Files]:
        """Return the files of each entry, as the storage lists them now.

        Raises:
            UnreachableError: if it does not answer, or holds no entry.
            RepositoryError: if a name leads out of the folder.
        """
        entries: dict[str, dict[str, str]] = defaultdict(dict)
        for path, about in self._listed().items():
            entry, _, file = path.partition("/")
            is_folder = about.get("type") == "directory" or path.endswith(
                "/"
            )  # an object that stands for one
            if not file or is_folder or entry.startswith("."):
                continue
            if any(name in ("", ".", "..") for name in file.split("/")) or "\\" in file:
                raise RepositoryError(
                    f"{self.name}: '{path}' is not a valid file name in an entry: delete it"
                )
            entries[entry][file] = _mark(about)
        if not entries:
            raise UnreachableError(f"{self.name}: contains no entry that `rationale compile` wrote")
        return dict(entries)

    def open(self) -> None:
        """Pull, or use the copy and set `fault` if the storage cannot be read.

        Raises:
            UnreachableError: if it cannot be read, and there is no copy.
            RepositoryError: if the copy cannot be written.
        """
        try:
            self.pull()
        except UnreachableError as error:
            if not self._linked():
                raise
            self.fault = f"{error}; the command uses the earlier copy in {self.entries}"

    def pull(self) -> None:
        """Sync the local copy with the storage; entries that do not fit together keep their old version.

        `refused` names the latter.

        Raises:
            UnreachableError: if the storage cannot be read; `entries` stays as it was.
            RepositoryError: if the copy cannot be written.
        """
        with self._exclusive():
            self._drop_damaged()
            listed = self.list_entries()
            linked = self._linked()
            keys = {name: _key(name, files) for name, files in listed.items()}
            with tempfile.TemporaryDirectory(prefix=".pulling-", dir=self.folder) as aside:
                new = {
                    name: self._fetch(name, files, Path(aside) / keys[name], linked.get(name))
                    for name, files in listed.items()
                    if name not in linked or linked[name].parent.name != keys[name]
                }
                current = {n: path for n, path in linked.items() if n in listed and n not in new}
                faults = self._faults(current | new, [*new, *(linked.keys() - listed.keys())])
                self.refused = {name: faults[model_of(name)] for name in new if model_of(name) in faults}
                for name in new.keys() - self.refused.keys():
                    self._take(new[name])
            for name in linked.keys() - listed.keys():
                if model_of(name) not in faults:
                    (self.entries / name).unlink()
            self._sweep()
        self.fault = None

    # --- the storage --------------------------------------------------------------------------------------

    @functools.cached_property
    def _storage(self) -> tuple[Any, str]:
        """The storage and the path of the repository in it; some storages connect when they are made."""
        from fsspec.core import url_to_fs  # type: ignore[import-untyped]

        with self._reading():
            storage, root = url_to_fs(self._url)
        return storage, str(root).rstrip("/")

    def _listed(self) -> dict[str, Any]:
        storage, root = self._storage
        with self._reading():
            storage.invalidate_cache()
            listed: dict[str, Any] = storage.find(root, detail=True, **self._limit())
        return {path.removeprefix(root).lstrip("/"): about for path, about in listed.items()}

    def _fetch(self, name: str, files: Files, folder: Path, before: Path | None) -> Path:
        """Return the entry in `folder`: changed files are downloaded, the others linked."""
        storage, root = self._storage
        marks = _files_of(before) if before is not None else {}
        downloads: dict[str, Path] = {}
        size = 0
        for file, mark in files.items():
            target = folder / name / file
            target.parent.mkdir(parents=True, exist_ok=True)
            if before is not None and marks.get(file) == mark and (before / file).is_file():
                os.link(before / file, target)
            else:
                downloads[f"{root}/{name}/{file}"] = target
                size += _size(mark)
        with self._reading():
            if downloads:
                storage.get([*downloads], [*map(str, downloads.values())], **self._limit(size))
        (folder / _FILES).write_text(json.dumps(files))
        return folder / name

    def _limit(self, size: int = 0) -> dict[str, float]:
        """Return the time limit of a call that moves so many bytes, if fsspec can limit it."""
        storage, _ = self._storage
        return {"timeout": _LOOK_S + size / _SLOWEST} if storage.async_impl else {}

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # each storage has errors of its own
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise UnreachableError(
                f"{self.name}: cannot be read: {without_password(lines[0])[:_REASON]}"
            ) from error

    # --- the copy -----------------------------------------------------------------------------------------

    def _linked(self) -> dict[str, Path]:
        """Return the folders of the current entries, with links resolved."""
        links = self.entries.iterdir() if self.entries.is_dir() else ()
        return {link.name: link.resolve() for link in links if link.is_symlink() and link.is_dir()}

    def _take(self, entry: Path) -> None:
        """Link the entry as the current one."""
        target, link = self._content / entry.parent.name, self.folder / f".link-{entry.name}"
        shutil.rmtree(target, ignore_errors=True)
        entry.parent.rename(target)
        link.unlink(missing_ok=True)
        link.symlink_to(Path("..") / self._content.name / target.name / entry.name)
        link.replace(self.entries / entry.name)

    def _drop_damaged(self) -> None:
        """Unlink entries whose files changed since they were pulled; it reads all files, so it runs once."""
        if self._is_checked:
            return
        linked = self._linked()
        faults = self._faults(linked, linked)
        for name in linked:
            if model_of(name) in faults:
                (self.entries / name).unlink()
        self._is_checked = True

    def _sweep(self) -> None:
        """Delete content without a link."""
        used = {folder.parent.name for folder in self._linked().values()}
        for path in self._content.iterdir():
            if path.name not in used:
                shutil.rmtree(path, ignore_errors=True)

    def _faults(self, entries: Mapping[str, Path], changed: Iterable[str]) -> dict[str, str]:
        """Return the reasons why entries of changed models do not match each other, by model."""
        models = {model_of(name) for name in changed}
        faults: dict[str, str] = {}
        for name, folder in entries.items():
            if (model := model_of(name)) not in models or not (folder / FILE_NAME).is_file():
                continue
            try:
                graphs = Manifest.read(folder / FILE_NAME).graphs
                for version, digest in graphs.items():
                    entry, _, number = version.partition("/")
                    if not number.isdecimal():
                        raise RepositoryError(f"{folder / FILE_NAME}: '{version}' is not a version folder")
                    if entry in entries and graph_digest(entries[entry] / number) != digest:
                        raise RepositoryError(
                            f"{self.name}/{version}: its files differ from those recorded in "
                            f"{name}/{FILE_NAME} (SHA-256 {digest[:12]}…). Upload {model} and its "
                            "explaining entry as one compile wrote them"
                        )
            except RepositoryError as error:
                faults.setdefault(model, str(error).replace(str(folder), f"{self.name}/{name}"))
        return faults

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Let one process in at a time."""
        try:
            for folder in (self.folder.parent, self.folder, self.entries, self._content):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # it holds rows of real people
            with hold_lock(self.folder) as locks:
                for folder in self.folder.glob(".pulling-*") if locks else ():  # else another may still pull
                    shutil.rmtree(folder, ignore_errors=True)
                yield
        except OSError as error:
            raise RepositoryError(
                f"{self.folder}: the copy of {self.name} cannot be written: {error.strerror or error}"
            ) from error


def pull_once(url: str, folder: Path | None = None) -> tuple[Path, list[str]]:
    """Return the folder that a command reads once, and warnings for its user.

    Args:
        folder: the copy's folder; None for one of the user's, which later commands find.

    Raises:
        InvalidOptionError, RepositoryError: an error with advice, if the repository cannot be read or copied.
    """
    remote = RemoteRepository(url, folder or _user_folder(url))
    remote.open()
    return remote.entries, [*filter(None, [remote.fault]), *dict.fromkeys(remote.refused.values())]


def _user_folder(url: str) -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "rationale" / hashlib.sha256(url.encode()).hexdigest()[:16]


def model_of(entry: str) -> str:
    """Return the name of the model, which all entries of one compile begin with."""
    return entry.partition(EXPLAIN_SUFFIX)[0]


def _mark(about: Mapping[str, Any]) -> str:
    """Return a text that changes when the file does."""
    mark = next((about[key] for key in (*_MARKS, *_TIMES) if about.get(key)), "")
    return f"{about.get('size')} {mark}"


def _size(mark: str) -> int:
    """Return the bytes of a file by its mark; 0 if the storage does not say."""
    size = mark.partition(" ")[0]
    return int(size) if size.isdecimal() else 0


def _key(name: str, files: Files) -> str:
    text = json.dumps([name, sorted(files.items())])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _files_of(entry: Path) -> Files:
    """Return the storage's listing of a pulled entry; nothing if it cannot be read."""
    try:
        files: Files = json.loads((entry.parent / _FILES).read_text())
    except (OSError, ValueError):
        return {}
    return files
