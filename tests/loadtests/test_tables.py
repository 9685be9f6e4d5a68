"""Tables as they lie about: what is a feature, what is not, and what is no table."""

from pathlib import Path

import numpy as np
import pytest

from loadtests.load.expected import REFERENCES, ROWS
from loadtests.load.prepare import prepare
from loadtests.load.tables import UnusableTableError, drawn, find, rows_and_references
from tests.loadtests.conftest import SMALL

CREDIT = Path(__file__).parents[2] / "examples" / "credit"
NAMED = "ID,amount,purpose,default\n1,10,car,0\n2,30,house,1\n3,20,car,0\n4,30,house,1\n"
BARE = "A11\t6\t1\nA12\t8\t2\nA11\t10\t2\n"


def written(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def test_identifiers_and_labels_are_no_features(tmp_path: Path) -> None:
    table = drawn(written(tmp_path, "a.csv", NAMED), 5, 0)
    assert table.shape == (3, 5), "two of the four lines are equal but for their identifier"
    assert not table[:, 2:].any()
    amounts = np.sort(table[:, 0])
    assert amounts == pytest.approx((np.array([10, 20, 30]) - 22.5) / np.std([10, 30, 20, 30]))
    assert sorted(table[:, 1]) == pytest.approx([-1, -1, 1]), "words are numbered"


def test_tables_need_no_names_and_columns_are_cut(tmp_path: Path) -> None:
    path = written(tmp_path, "german.data", BARE)
    assert drawn(path, 4, 0).any(axis=0).tolist() == [True, True, False, False]
    assert drawn(path, 1, 0).shape == (2, 1)


def test_the_largest_table_of_a_folder_is_taken(tmp_path: Path) -> None:
    written(tmp_path, "small.csv", BARE)
    assert find(written(tmp_path, "large.tsv", NAMED * 2).parent).name == "large.tsv"
    assert find(CREDIT).name == "references.csv"


def test_rows_and_references_are_apart(tmp_path: Path) -> None:
    lines = "\n".join(f"{i},{i * i}" for i in range(50))
    path = written(tmp_path, "a.csv", lines)
    rows, references = rows_and_references(path, 20, 30, 2, seed=1)
    assert (rows.shape, references.shape, rows.dtype) == ((20, 2), (30, 2), np.float32)
    assert len(np.unique(np.concatenate([rows, references]), axis=0)) == 50
    assert np.array_equal(rows_and_references(path, 20, 30, 2, seed=1)[0], rows)


REFUSED = {
    "too few rows": (NAMED, "3 distinct rows, and 4 references are needed"),
    "a line too short": ("a,b\n1,2\n3\n", "different numbers of cells"),
    "nothing": ("", "no table"),
    "one line": ("1,2\n", "are few"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_table_is_told(tmp_path: Path, name: str) -> None:
    text, message = REFUSED[name]
    with pytest.raises(UnusableTableError, match=message):
        rows_and_references(written(tmp_path, "a.csv", text), 2, 4, 3, 0)


def test_what_is_no_text_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UnusableTableError, match="decode"):
        drawn(tmp_path, 3, 0)
    with pytest.raises(UnusableTableError, match="neither a file nor a folder"):
        find(tmp_path / "missing")


def test_a_workload_is_made_of_a_table(tmp_path: Path) -> None:
    prepare(SMALL, tmp_path, data=CREDIT)
    rows, references = (np.load(tmp_path / name) for name in (ROWS, REFERENCES))
    assert (rows.shape, references.shape) == ((8, 24), (5, 24))
    assert rows[:, :10].std(axis=0).all()
    assert not rows[:, 10:].any(), "the table has ten columns"
