"""A file of answers is whole or not there, at whichever step of its writing a fault comes."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from rationale.portfolios import answered_files


class _Failing:
    """This machine's file system, one of whose methods fails."""

    def __init__(self, method: str | None) -> None:
        self._method = method

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return _fail if name == self._method else getattr(fs.LocalFileSystem(), name)


def _fail(*_: object) -> None:
    raise OSError("no space")


def _write(writing: AbstractContextManager[Any], *, is_stopped: bool) -> None:
    with writing as out:
        out.write(b"new")
        if is_stopped:
            _fail()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "part-0.parquet"
    file.write_bytes(b"old")
    return file


@pytest.mark.parametrize("step", ["open_output_stream", "move", None])
def test_a_store_that_fails_keeps_the_old_answer_alone(file: Path, step: str | None) -> None:
    writing = answered_files._atomic_file_in_store(_Failing(step), str(file))
    with pytest.raises(OSError, match="no space"):
        _write(writing, is_stopped=step is None)
    assert list(file.parent.iterdir()) == [file]
    assert file.read_bytes() == b"old"


@pytest.mark.parametrize("step", ["replace", None])
def test_a_disk_that_fails_keeps_the_old_answer_alone(
    file: Path, step: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if step is not None:
        monkeypatch.setattr(Path, step, _fail)
    with pytest.raises(OSError, match="no space"):
        _write(answered_files._atomic_file_here(file), is_stopped=step is None)
    assert list(file.parent.iterdir()) == [file]
    assert file.read_bytes() == b"old"
