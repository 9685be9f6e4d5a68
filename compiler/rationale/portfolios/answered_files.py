"""Many parquet files of rows, here or in an object store: a file of answers for each, written resumably."""

import fnmatch
import os
import posixpath
import secrets
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rationale.artifact.folder import locked
from rationale.errors import InvalidOptionError, RationaleError, reason_of
from rationale.schema.request import Progress, silent
from rationale.tables.frames import demand_pyarrow

SOURCE = "rationale.rows"  # in a written file's metadata: what it was made of
SUFFIX = ".parquet"
_GLOB = frozenset("*?[")
_GROUP = 50_000  # rows that are written together


class Answering(Protocol):
    """A source of answers to a portfolio's rows."""

    @property
    def stage(self) -> str:
        """Name of the work, for a progress bar."""

    @property
    def batch_rows(self) -> int:
        """Number of rows in one batch."""

    def schema(self, given: Any) -> Any:
        """Return the schema of the answers to rows of a schema.

        Its metadata names their source: a file whose metadata lacks that name is written again.
        """

    def answers(self, source: "Source", batches: Iterator[Any]) -> Iterable[Any]:
        """Yield record batches of that schema, with the number of their rows in `row`."""


@dataclass(frozen=True)
class Answered:
    """The result of a run.

    Attributes:
        files: files of answers, including those of earlier runs.
        written: number of files that this run wrote; `rows` counts their rows.
    """

    target: "Folder"
    files: tuple[str, ...]
    written: int
    rows: int

    def __str__(self) -> str:
        kept = len(self.files) - self.written
        more = f"; {kept} more are there already" if kept else ""
        return f"wrote {self.written} files with {self.rows} rows to {self.target.name}{more}"

    def columns(self, names: list[str]) -> Iterator[Any]:
        """Yield the columns of each file, as a table."""
        from pyarrow import parquet

        for file in self.files:
            with _naming(file), self.target.system.open_input_file(file) as opened:
                yield parquet.read_table(opened, columns=names)


def is_portfolio(rows: str) -> bool:
    """Tell whether `--input` names several files, or some elsewhere: a folder, a pattern or a URL."""
    return "://" in rows or (not Path(rows).is_file() and (not _GLOB.isdisjoint(rows) or Path(rows).is_dir()))


def answer_files(rows: str, save: str, answering: Answering, progress: Progress = silent) -> Answered:
    """Answer the rows of parquet files.

    Each file is written whole or not at all, under its own name. What an earlier run wrote of the same rows
    by the same means stays.

    Args:
        rows: a folder, a pattern (`s3://loans/2026/*.parquet`) or a file, by path or URL.
        save: the folder for what is written, by path or URL.

    Raises:
        InvalidOptionError: files or folders that cannot be used; and what `answering` raises.
    """
    demand_pyarrow("many files")
    target = Folder.at(save, "--save")
    sources = _sources(rows, target)
    if any(target.is_target_of(source) for source in sources):
        raise InvalidOptionError(f"--save {save}: holds the rows to answer: save to another folder.")
    waiting = [source for source in sources if not _is_done(answering, source, target)]
    total = sum(source.rows for source in waiting)
    before = 0
    for source in waiting:
        for done in _write(answering, source, target):
            progress(answering.stage, before + done, total)
        before += source.rows
    return Answered(target, tuple(target.file(source) for source in sources), len(waiting), total)


@dataclass(frozen=True)
class Folder:
    """A folder of a file system: this machine's, or an object store.

    Attributes:
        name: the folder's name as the caller wrote it.
    """

    name: str
    system: Any
    path: str

    @classmethod
    def at(cls, text: str, option: str) -> "Folder":
        from pyarrow import fs

        if "://" not in text:
            return cls(text, fs.LocalFileSystem(), Path(text).resolve().as_posix())
        with _naming(f"{option} {text}"):
            return cls(text, *fs.FileSystem.from_uri(text))

    def is_target_of(self, source: "Source") -> bool:
        """Tell whether a source lies where its answer would be written."""
        return source.path == self.file(source) and bool(source.system.equals(self.system))

    def file(self, source: "Source") -> str:
        return posixpath.join(self.path, source.name)


@dataclass(frozen=True)
class Source:
    """A file of rows.

    Attributes:
        name: its path below the folder that was named.
        stamp: changes with its content.
    """

    system: Any
    path: str
    name: str
    stamp: str
    rows: int
    schema: Any


def _sources(text: str, target: Folder) -> list[Source]:
    """Return the files that a folder, a pattern or a path stands for.

    Left out are hidden ones, such as engines leave behind, and answers of an earlier run in a folder below.

    Raises:
        InvalidOptionError: there are none, or they cannot be read.
    """
    from pyarrow import fs

    fixed, pattern = _split(text)
    folder = Folder.at(fixed, "--input")
    with _naming(f"--input {text}"):
        info = folder.system.get_file_info(folder.path)
        if info.type == fs.FileType.NotFound:
            raise InvalidOptionError("no such file or folder.")
        if info.type == fs.FileType.File:
            infos, base = [info], posixpath.dirname(folder.path)
        else:
            infos = folder.system.get_file_info(fs.FileSelector(folder.path, recursive=True))
            base = folder.path
    is_below = folder.system.equals(target.system) and target.path.startswith(f"{base}/")
    named = {
        posixpath.relpath(one.path, base): one
        for one in infos
        if one.type == fs.FileType.File and not (is_below and one.path.startswith(f"{target.path}/"))
    }
    chosen = {
        name: one
        for name, one in sorted(named.items())
        if name.endswith(SUFFIX)
        and not any(part.startswith(("_", ".")) for part in name.split("/"))
        and (pattern is None or _matches(name, pattern))
    }
    if not chosen:
        wanted = f"{SUFFIX} file" if pattern is None else f"{SUFFIX} file that fits the pattern"
        raise InvalidOptionError(
            f"--input {text}: no file below {fixed} is a {wanted} ({len(named)} looked at)."
        )
    return [_source(folder.system, one, name) for name, one in chosen.items()]


def _matches(name: str, pattern: str) -> bool:
    """Tell whether each part of a path fits that of a pattern: a wildcard stands for no folder."""
    parts, wanted = name.split("/"), pattern.split("/")
    return len(parts) == len(wanted) and all(map(fnmatch.fnmatchcase, parts, wanted))


def _split(text: str) -> tuple[str, str | None]:
    """Return the folder before the first part of a path with a wildcard, and the pattern below it."""
    if Path(text).exists():
        return text, None
    parts = text.split("/")
    first = next((i for i, part in enumerate(parts) if not _GLOB.isdisjoint(part)), None)
    if first is None:
        return text, None
    return "/".join(parts[:first]) or ("/" if text.startswith("/") else "."), "/".join(parts[first:])


def _source(system: Any, info: Any, name: str) -> Source:
    from pyarrow import parquet

    with _naming(name), system.open_input_file(info.path) as file, parquet.ParquetFile(file) as opened:
        rows, schema = opened.metadata.num_rows, opened.schema_arrow
    return Source(system, info.path, name, f"{info.size} {info.mtime_ns}", rows, schema)


def _schema(answering: Answering, source: Source) -> Any:
    schema = answering.schema(source.schema)
    return schema.with_metadata({**schema.metadata, SOURCE: source.stamp})


def _is_done(answering: Answering, source: Source, target: Folder) -> bool:
    """Tell whether the answer is there, of these rows and by the same means."""
    from pyarrow import ArrowException, parquet

    due = _schema(answering, source)
    try:
        with target.system.open_input_file(target.file(source)) as file:
            found = parquet.read_schema(file)
    except (ArrowException, OSError):
        return False
    return bool(found.equals(due)) and due.metadata.items() <= (found.metadata or {}).items()


def _write(answering: Answering, source: Source, target: Folder) -> Iterator[int]:
    """Write the answer of one file; yield how many of its rows are answered, as it goes on."""
    from pyarrow import Table, parquet

    file, schema = target.file(source), _schema(answering, source)
    with _naming(source.name):
        target.system.create_dir(posixpath.dirname(file), recursive=True)
        with (
            source.system.open_input_file(source.path) as rows,
            parquet.ParquetFile(rows) as opened,
            _published(target.system, file) as out,
            parquet.ParquetWriter(out, schema, use_dictionary=_words(schema)) as writer,
        ):
            answers = answering.answers(source, opened.iter_batches(answering.batch_rows))
            waiting: list[Any] = []
            for answer in answers:
                waiting.append(answer)
                if sum(one.num_rows for one in waiting) >= _GROUP:
                    writer.write_table(Table.from_batches(waiting, schema))
                    waiting = []
                yield answer.column("row")[-1].as_py() + 1
            if waiting:
                writer.write_table(Table.from_batches(waiting, schema))


@contextmanager
def _published(system: Any, file: str) -> Iterator[Any]:
    """Yield a stream whose content is the file's when all of it was written; else nothing is left.

    Raises:
        InvalidOptionError: another run writes the same file here.
    """
    from pyarrow import fs

    with ExitStack() as stack:
        is_here = isinstance(system, fs.LocalFileSystem)
        out = stack.enter_context(_published_here(Path(file))) if is_here else None
        yield stack.enter_context(_published_there(system, file)) if out is None else out


@contextmanager
def _published_there(system: Any, file: str) -> Iterator[Any]:
    """Yield a stream as `_published` does, to a name of this run alone; a store shows none half written."""
    part = f"{file}.{secrets.token_hex(8)}.part"
    with ExitStack() as on_failure:
        on_failure.callback(_delete, system, part)
        with system.open_output_stream(part) as out:
            yield out
        system.move(part, file)
        on_failure.pop_all()


@contextmanager
def _published_here(file: Path) -> Iterator[Any]:
    """Yield a stream as `_published` does, or None where no lock keeps other runs from writing to it."""
    part = file.with_name(f"{file.name}.part")
    with part.open("ab") as out, locked(out, "another run writes its answer: wait for that one.") as alone:
        if alone:
            if not part.exists() or not os.path.samestat(part.stat(), os.fstat(out.fileno())):
                raise InvalidOptionError("another run has just written its answer: run it again.")
            out.truncate(0)
            try:
                yield out
                out.flush()
                part.replace(file)
            except BaseException:
                part.unlink(missing_ok=True)
                raise
            return
    part.unlink(missing_ok=True)
    yield None


def _delete(system: Any, file: str) -> None:
    with suppress(OSError):
        system.delete_file(file)


@contextmanager
def _naming(what: str) -> Iterator[None]:
    """Name the subject in errors, and turn those of the file system into InvalidOptionError."""
    from pyarrow import ArrowException

    try:
        yield
    except RationaleError as error:
        raise type(error)(f"{what}: {error}") from error
    except (ArrowException, OSError) as error:
        raise InvalidOptionError(f"{what}: {reason_of(error)}") from error


def _words(schema: Any) -> list[str]:
    """Return the columns that repeat themselves; floats do not."""
    from pyarrow import types

    return [field.name for field in schema if not types.is_floating(field.type)]
