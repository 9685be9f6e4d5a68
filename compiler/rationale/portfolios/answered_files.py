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

from rationale.artifact.repository.folder import hold_lock
from rationale.errors import InvalidOptionError, RationaleError, reason_of
from rationale.schema.request import Progress, silent
from rationale.tables.frames import require_package

SOURCE = "rationale.rows"  # in a written file's metadata: its source
SUFFIX = ".parquet"
_GLOB = frozenset("*?[")
_GROUP = 50_000  # rows that are written together


class RowAnswerer(Protocol):
    """A source of answers to a portfolio's rows."""

    @property
    def stage(self) -> str:
        """Name of the work, for a progress bar."""

    @property
    def batch_rows(self) -> int:
        """Number of rows in one batch."""

    def schema(self, rows_schema: Any) -> Any:
        """Return the schema of the answers to rows of a schema.

        Its metadata names their source: a file whose metadata lacks that name is written again.
        """

    def answers(self, files: Iterator[tuple["RowFile", Iterator[Any]]]) -> Iterator[Any]:
        """Yield record batches of that schema, with the number of their rows in `row`, file by file.

        Args:
            files: files with the batches of their rows, which may be read ahead.
        """


@dataclass(frozen=True)
class AnsweredFiles:
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
        earlier = len(self.files) - self.written
        more = f"; {earlier} more are there already" if earlier else ""
        return f"wrote {self.written} files with {self.rows} rows to {self.target.name}{more}"

    def columns(self, names: list[str]) -> Iterator[Any]:
        """Yield the columns of each file, as a table."""
        from pyarrow import parquet

        for file in self.files:
            with _file_errors(file), self.target.system.open_input_file(file) as opened:
                yield parquet.read_table(opened, columns=names)


def is_portfolio(rows: str) -> bool:
    """Tell whether `--input` names several files, or some elsewhere: a folder, a pattern or a URL."""
    return "://" in rows or (not Path(rows).is_file() and (not _GLOB.isdisjoint(rows) or Path(rows).is_dir()))


def answer_files(rows: str, save: str, answerer: RowAnswerer, progress: Progress = silent) -> AnsweredFiles:
    """Answer the rows of parquet files.

    Write each file whole or not at all, under its own name. Keep an earlier run's answers to the same rows
    from the same source.

    Args:
        rows: a folder, a pattern (`s3://loans/2026/*.parquet`) or a file, by path or URL.
        save: the folder for the answers, by path or URL.

    Raises:
        InvalidOptionError: if files or folders cannot be used. Errors of `answerer` pass through.
    """
    require_package("pyarrow", "parquet", "many files")
    target = Folder.open(save, "--save")
    sources = _sources(rows, target)
    if any(target.is_target_of(source) for source in sources):
        raise InvalidOptionError(
            f"--save {save}: this folder contains the input rows: save to another folder."
        )
    waiting = [source for source in sources if not _is_answered(answerer, source, target)]
    total = sum(source.rows for source in waiting)
    earlier_rows, answers = 0, answerer.answers(_rows_of(waiting, answerer.batch_rows))
    for source in waiting:
        for answered_rows in _write(answers, _schema(answerer, source), source, target):
            progress(answerer.stage, earlier_rows + answered_rows, total)
        earlier_rows += source.rows
    return AnsweredFiles(target, tuple(target.file(source) for source in sources), len(waiting), total)


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
    def open(cls, location: str, option: str) -> "Folder":
        from pyarrow import fs

        if "://" not in location:
            return cls(location, fs.LocalFileSystem(), Path(location).resolve().as_posix())
        with _file_errors(f"{option} {location}"):
            return cls(location, *fs.FileSystem.from_uri(location))

    def is_target_of(self, source: "RowFile") -> bool:
        """Tell whether a source has the path that its answer would get."""
        return source.path == self.file(source) and bool(source.system.equals(self.system))

    def file(self, source: "RowFile") -> str:
        return posixpath.join(self.path, source.name)


@dataclass(frozen=True)
class RowFile:
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


def _sources(text: str, target: Folder) -> list[RowFile]:
    """Return the files of a folder, a pattern or a path.

    Leave out hidden files, such as engines leave behind, and an earlier run's answers in a subfolder.

    Raises:
        InvalidOptionError: if there are no files, or they cannot be read.
    """
    from pyarrow import fs

    fixed, pattern = _split(text)
    folder = Folder.open(fixed, "--input")
    with _file_errors(f"--input {text}"):
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
        posixpath.relpath(info.path, base): info
        for info in infos
        if info.type == fs.FileType.File and not (is_below and info.path.startswith(f"{target.path}/"))
    }
    chosen = {
        name: info
        for name, info in sorted(named.items())
        if name.endswith(SUFFIX)
        and not any(segment.startswith(("_", ".")) for segment in name.split("/"))
        and (pattern is None or _matches(name, pattern))
    }
    if not chosen:
        kind = f"{SUFFIX} file" if pattern is None else f"{SUFFIX} file that fits the pattern"
        raise InvalidOptionError(f"--input {text}: none of the {len(named)} files below {fixed} is a {kind}.")
    return [_source(folder.system, info, name) for name, info in chosen.items()]


def _matches(name: str, pattern: str) -> bool:
    """Tell whether each part of a path fits that of a pattern: a wildcard stands for no folder."""
    names, patterns = name.split("/"), pattern.split("/")
    return len(names) == len(patterns) and all(map(fnmatch.fnmatchcase, names, patterns))


def _split(text: str) -> tuple[str, str | None]:
    """Return the folder before the first part of a path with a wildcard, and the pattern below it."""
    if Path(text).exists():
        return text, None
    parts = text.split("/")
    first = next((i for i, name in enumerate(parts) if not _GLOB.isdisjoint(name)), None)
    if first is None:
        return text, None
    return "/".join(parts[:first]) or ("/" if text.startswith("/") else "."), "/".join(parts[first:])


def _source(system: Any, info: Any, name: str) -> RowFile:
    from pyarrow import parquet

    with _file_errors(name), system.open_input_file(info.path) as file, parquet.ParquetFile(file) as opened:
        rows, schema = opened.metadata.num_rows, opened.schema_arrow
    return RowFile(system, info.path, name, f"{info.size} {info.mtime_ns}", rows, schema)


def _schema(answerer: RowAnswerer, source: RowFile) -> Any:
    schema = answerer.schema(source.schema)
    return schema.with_metadata({**schema.metadata, SOURCE: source.stamp})


def _is_answered(answerer: RowAnswerer, source: RowFile, target: Folder) -> bool:
    """Tell whether there is an answer to these rows from the same source."""
    from pyarrow import ArrowException, parquet

    expected = _schema(answerer, source)
    try:
        with target.system.open_input_file(target.file(source)) as file:
            schema = parquet.read_schema(file)
    except (ArrowException, OSError):
        return False
    return bool(schema.equals(expected)) and expected.metadata.items() <= (schema.metadata or {}).items()


def _rows_of(sources: Iterable[RowFile], batch_rows: int) -> Iterator[tuple[RowFile, Iterator[Any]]]:
    """Yield each file with the batches of its rows, which are read before the next file is opened."""
    from pyarrow import parquet

    for source in sources:
        with source.system.open_input_file(source.path) as file, parquet.ParquetFile(file) as opened:
            if opened.metadata.num_rows != source.rows:
                raise InvalidOptionError("the file changed during this run: run the command again.")
            yield source, opened.iter_batches(batch_rows)


def _write(answers: Iterator[Any], schema: Any, source: RowFile, target: Folder) -> Iterator[int]:
    """Write the answer of one file; yield the number of answered rows after each batch."""
    from pyarrow import Table, parquet

    file, answered, group = target.file(source), 0, list[Any]()
    with _file_errors(source.name):
        target.system.create_dir(posixpath.dirname(file), recursive=True)
        with (
            _atomic_file(target.system, file) as out,
            parquet.ParquetWriter(out, schema, use_dictionary=_repetitive_columns(schema)) as writer,
        ):
            while answered < source.rows:
                group.append(next(answers))
                answered = group[-1].column("row")[-1].as_py() + 1
                if answered == source.rows or sum(batch.num_rows for batch in group) >= _GROUP:
                    writer.write_table(Table.from_batches(group, schema))
                    group = []
                yield answered


@contextmanager
def _atomic_file(system: Any, file: str) -> Iterator[Any]:
    """Yield a stream that becomes the file once it is complete; on an error, leave no file behind.

    Raises:
        InvalidOptionError: if another run is writing the same file on this machine.
    """
    from pyarrow import fs

    with ExitStack() as stack:
        is_here = isinstance(system, fs.LocalFileSystem)
        out = stack.enter_context(_atomic_file_here(Path(file))) if is_here else None
        yield stack.enter_context(_atomic_file_in_store(system, file)) if out is None else out


@contextmanager
def _atomic_file_in_store(system: Any, file: str) -> Iterator[Any]:
    """Yield a stream like `_published`, under this run's own name; a store shows no half-written file."""
    partial_file = f"{file}.{secrets.token_hex(8)}.part"
    with ExitStack() as on_failure:
        on_failure.callback(_delete, system, partial_file)
        with system.open_output_stream(partial_file) as out:
            yield out
        system.move(partial_file, file)
        on_failure.pop_all()


@contextmanager
def _atomic_file_here(file: Path) -> Iterator[Any]:
    """Yield a stream like `_published`, or None if no lock can keep other runs from writing to it."""
    partial_file = file.with_name(f"{file.name}.part")
    with (
        partial_file.open("ab") as out,
        hold_lock(out, "another run writes its answer: wait for that one.") as alone,
    ):
        if alone:
            if not partial_file.exists() or not os.path.samestat(partial_file.stat(), os.fstat(out.fileno())):
                raise InvalidOptionError(
                    "another run wrote its answer at the same time: run the command again."
                )
            out.truncate(0)
            try:
                yield out
                out.flush()
                partial_file.replace(file)
            except BaseException:
                partial_file.unlink(missing_ok=True)
                raise
            return
    partial_file.unlink(missing_ok=True)
    yield None


def _delete(system: Any, file: str) -> None:
    with suppress(OSError):
        system.delete_file(file)


@contextmanager
def _file_errors(subject: str) -> Iterator[None]:
    """Name the subject in errors, and turn those of the file system into InvalidOptionError."""
    from pyarrow import ArrowException

    try:
        yield
    except RationaleError as error:
        raise type(error)(f"{subject}: {error}") from error
    except (ArrowException, OSError) as error:
        raise InvalidOptionError(f"{subject}: {reason_of(error)}") from error


def _repetitive_columns(schema: Any) -> list[str]:
    """Return the columns that repeat themselves; floats do not."""
    from pyarrow import types

    return [field.name for field in schema if not types.is_floating(field.type)]
