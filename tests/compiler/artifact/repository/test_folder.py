"""One process at a time, where the file system has locks."""

import sys
from pathlib import Path

import pytest

from rationale.artifact.repository.folder import hold_lock, write
from rationale.errors import InvalidOptionError


def test_a_folder_and_a_file_let_one_in(tmp_path: Path) -> None:
    with (tmp_path / "part").open("ab") as file:
        for place in (tmp_path, file):
            with hold_lock(place) as alone:
                assert alone
        with (
            hold_lock(file) as alone,
            (tmp_path / "part").open("ab") as second,
            pytest.raises(InvalidOptionError, match=r"^busy$"),
            hold_lock(second, "busy"),
        ):
            pass
        assert alone
    with hold_lock(tmp_path, "left when the first has gone") as alone:
        assert alone


def test_an_error_of_who_is_in_stays_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(BlockingIOError), hold_lock(tmp_path, "another run"):
        raise BlockingIOError


@pytest.mark.usefixtures("without_locks")
def test_a_file_system_without_locks_lets_everyone_in(tmp_path: Path) -> None:
    with hold_lock(tmp_path) as first, hold_lock(tmp_path, "another run") as second:
        assert (first, second) == (False, False)


def test_a_platform_without_locks_lets_everyone_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with hold_lock(tmp_path) as first, hold_lock(tmp_path, "another run") as second:
        assert (first, second) == (False, False)


def test_files_of_which_one_cannot_be_written_stay_as_they_were(tmp_path: Path) -> None:
    write(tmp_path, {"a": b"old", "b": b"old"})
    with pytest.raises(InvalidOptionError, match=r"--out .* cannot be written"):
        write(tmp_path, {"a": b"new", "no folder/b": b"new"})
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {"a": b"old", "b": b"old"}
    write(tmp_path, {"a": b"new"})
    assert (tmp_path / "a").read_bytes() == b"new"
