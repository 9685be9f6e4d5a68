"""Record batches and folders of parquet files: explained as their rows are, written whole, resumed."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from moto.server import ThreadedMotoServer
from pyarrow import fs, parquet
from typer.testing import CliRunner, Result

import rationale
from rationale import Compiled, DeepShap, InvalidOptionError, InvalidReferencesError, compile_model
from rationale.cli.compile import app
from rationale.errors import RationaleError
from rationale.portfolios import answered_files, arrow, portfolio
from rationale.portfolios.arrow import run_rows
from tests.compiler.models import FEATURES, NAMES, mlp, rows

N, K = 2500, 6
DIGEST = b"rationale.explanation"


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    return compile_model(mlp(), DeepShap(rows(K, FEATURES)), targets=[1], feature_names=NAMES)


@pytest.fixture(scope="module")
def repository(compiled: Compiled, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    compiled.write(folder, "m")
    return folder


def table(count: int = N, seed: int = 9) -> pa.Table:
    x = rows(count, FEATURES, seed=seed)
    columns = dict(zip(reversed(NAMES), reversed(x.T), strict=True))  # found by name
    return pa.table({"id": [f"loan-{i}" for i in range(count)], **columns})


def explain(repository: Path, *arguments: object) -> Result:
    arguments = ("explain", "m", "--repository", repository, *arguments)
    return CliRunner().invoke(app, list(map(str, arguments)))


@pytest.mark.parametrize("threads", [1, 3, None])
def test_batches_are_explained_as_their_rows_are(
    compiled: Compiled, repository: Path, threads: int | None
) -> None:
    source_table = table()
    answer = pa.Table.from_batches(
        rationale.explain_batches(
            repository / "m", source_table.to_batches(max_chunksize=1700), keep=["id"], threads=threads
        )
    )
    expected = compiled.explain(rows(N, FEATURES, seed=9))
    (explained,) = compiled.manifest.attributed
    assert answer["id"].to_pylist() == source_table["id"].to_pylist()
    assert answer["row"].to_pylist() == list(range(N))
    for j, name in enumerate(NAMES):
        np.testing.assert_allclose(
            answer[name], expected[explained.attributions].reshape(N, -1)[:, j], rtol=1e-5, atol=1e-6
        )
    assert answer.schema.metadata[DIGEST].decode() == compiled.manifest.digests.explanation


def test_an_entry_that_was_compiled_again_answers(tmp_path: Path) -> None:
    """A process keeps entries open, by the name of their folder."""
    actual = []
    for seed in (1, 2, 1):
        combined = compile_model(
            mlp(), DeepShap(rows(K, FEATURES, seed=seed)), targets=[1], feature_names=NAMES
        )
        combined.write(tmp_path, "m")
        answer = pa.Table.from_batches(rationale.explain_batches(tmp_path / "m", table(20)))
        actual.append(np.array(answer[NAMES[0]]))
        digest = answer.schema.metadata[DIGEST].decode()
        assert digest == combined.manifest.digests.explanation
        np.testing.assert_allclose(
            answer["base_value"],
            combined.explain(rows(20, FEATURES, seed=9))["base_value"].ravel(),
            rtol=1e-5,
        )
    assert not np.allclose(actual[0], actual[1])
    np.testing.assert_array_equal(actual[0], actual[2])


def test_a_batch_is_run_in_parts(compiled: Compiled, monkeypatch: pytest.MonkeyPatch) -> None:
    source_table, whole = table(100), run_rows(compiled)
    (expected,) = rationale.explain_batches(compiled, source_table)
    monkeypatch.setattr(arrow, "_CACHE_BYTES", 7 * compiled.manifest.memory.work)
    monkeypatch.setattr(arrow, "_FEWEST", 3)
    assert (run_rows(compiled), whole > 7) == (7, True)
    (answer,) = rationale.explain_batches(compiled, source_table)
    assert answer.schema == expected.schema
    for name in answer.schema.names:
        np.testing.assert_allclose(answer.column(name), expected.column(name), rtol=1e-5, atol=1e-6)


def test_a_run_of_a_thread_takes_one_core(compiled: Compiled, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the sessions of as many threads as there are cores would want all of them each."""
    loaded, threads = Compiled.loaded, list[int | None]()

    def counted(self: Compiled, count: int | None = None, **value: int) -> Any:
        threads.append(value.get("threads", count))
        return loaded(self, threads=threads[-1])

    monkeypatch.setattr(Compiled, "loaded", counted)
    arrow._session.cache_clear()
    list(rationale.explain_batches(compiled, table(4)))
    assert threads == [1]


def test_every_target_has_a_row(compiled: Compiled) -> None:
    several = compile_model(mlp(), DeepShap(rows(K, FEATURES)), targets="all", feature_names=NAMES)
    source_table = table(5)
    (answer,) = rationale.explain_batches(several, source_table, keep=["id"])
    assert answer.column("target").to_pylist() == [0, 1, 2] * 5
    assert answer.column("id").to_pylist() == [f"loan-{i}" for i in range(5) for _ in range(3)]
    assert answer.schema == rationale.batches_schema(several, source_table.schema, ["id"])
    assert list(rationale.explain_batches(compiled, [])) == []


def test_one_batch_is_taken(compiled: Compiled) -> None:
    (batch,) = table(5).to_batches()
    (answer,) = rationale.explain_batches(compiled, batch)
    assert answer.num_rows == 5


@pytest.mark.parametrize(
    "make",
    [pa.Table.to_pandas, pl.from_arrow, duckdb.from_arrow, pa.Table.to_reader],
    ids=["pandas", "polars", "duckdb", "reader"],
)
def test_tables_of_every_library_are_taken(compiled: Compiled, make: Callable[[pa.Table], Any]) -> None:
    expected, answer = (
        pa.Table.from_batches(rationale.explain_batches(compiled, source_table, keep=["id"]))
        for source_table in (table(5), make(table(5)))
    )
    assert answer.select(NAMES).equals(expected.select(NAMES))
    assert answer["id"].to_pylist() == expected["id"].to_pylist()


def test_a_stream_is_read_as_it_is_answered(compiled: Compiled) -> None:
    read = 0

    def batches() -> Iterator[Any]:
        nonlocal read
        for batch in table(100).to_batches(max_chunksize=1):
            read += 1
            yield batch

    next(rationale.explain_batches(compiled, batches(), threads=2))
    assert read < 10


FAULTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "columns 'age' are missing": (table(3).drop(["age"]), {}),
    "rows 0 to 2: no column 'loan' to keep": (table(3), {"keep": ["loan"]}),
    "columns ['row'] to keep": (
        table(3).append_column("row", pa.array([1, 2, 3])),
        {"keep": ["row"]},
    ),
    "column 'cards' has no value in row 1": (
        table(3).set_column(1, NAMES[-1], pa.array([1.0, None, 2.0])),
        {},
    ),
    "column 'age' holds '1', not numbers": (
        table(3).drop(["age"]).append_column("age", pa.array(["1", "x", "y"])),
        {},
    ),
    "threads=0": (table(3), {"threads": 0}),
    "threads=1.5": (table(3), {"threads": 1.5}),
    "a dict ": ([{"age": [1.0]}], {}),
    "a str ": (["age"], {}),
    "a NoneType ": (None, {}),
}


@pytest.mark.parametrize("text", FAULTS)
def test_what_cannot_be_explained_is_named(compiled: Compiled, text: str) -> None:
    batches, options = FAULTS[text]
    with pytest.raises((InvalidOptionError, InvalidReferencesError)) as fault:
        list(rationale.explain_batches(compiled, batches, **options))
    assert text in str(fault.value)


@pytest.fixture
def loans(tmp_path: Path) -> Path:
    folder = tmp_path / "loans" / "2026"
    folder.mkdir(parents=True)
    for i in range(3):
        parquet.write_table(table(N + i, seed=i), folder / f"part-{i}.parquet")
    (folder / "notes.txt").touch()
    return folder.parent


def test_each_file_is_written_under_its_name(compiled: Compiled, repository: Path, loans: Path) -> None:
    to = loans.parent / "reasons"
    result = explain(repository, "--input", loans, "--save", to, "--keep", "id")
    assert (result.exit_code, result.output) == (0, f"wrote 3 files with {3 * N + 3} rows to {to}\n")
    assert sorted(path.name for path in (to / "2026").iterdir()) == [f"part-{i}.parquet" for i in range(3)]
    answer = parquet.read_table(to / "2026" / "part-2.parquet")
    expected = compiled.explain(rows(N + 2, FEATURES, seed=2))
    np.testing.assert_allclose(
        answer["explained_value"], expected[compiled.manifest.explained_value][:, 0], rtol=1e-5, atol=1e-6
    )
    assert answer["id"].to_pylist() == [f"loan-{i}" for i in range(N + 2)]


@pytest.mark.parametrize(
    ("pattern", "count"),
    [
        ("2026/*.parquet", 3),
        ("*/part-[12].parquet", 2),
        ("2026/part-?.parquet", 3),
        *((pattern, 0) for pattern in ("*.parquet", "*", "20*", "2026/*/*.parquet", "2026/*/*")),
    ],
)
def test_a_pattern_is_of_one_folder(repository: Path, loans: Path, pattern: str, count: int) -> None:
    result = explain(repository, "--input", loans / pattern, "--save", loans.parent / "reasons")
    assert (f"wrote {count} files" if count else "is a .parquet file that fits the pattern") in result.output


def test_a_second_run_explains_what_is_new(repository: Path, loans: Path) -> None:
    to = loans.parent / "reasons"
    pattern = loans / "2026" / "part-[01].parquet"
    assert "wrote 2 files" in explain(repository, "--input", pattern, "--save", to).output
    before = (to / "part-0.parquet").stat().st_mtime_ns
    parquet.write_table(table(40), loans / "2026" / "part-1.parquet")
    result = explain(repository, "--input", loans / "2026", "--save", to).output
    assert result == f"wrote 2 files with {N + 42} rows to {to}; 1 more are there already\n"
    assert (to / "part-0.parquet").stat().st_mtime_ns == before
    assert (
        "wrote 3 files" in explain(repository, "--input", loans / "2026", "--save", to, "--keep", "id").output
    )


def test_the_rows_of_a_batch_that_is_refused_are_named(compiled: Compiled) -> None:
    """The error names the first and the last row by their numbers in the stream."""
    batches = [*table(4).to_batches(), *table(3).drop(["age"]).to_batches()]
    answers = rationale.explain_batches(compiled, batches, threads=1)
    with pytest.raises(RationaleError, match=r"^rows 4 to 6: .*columns 'age' are missing"):
        list(answers)


def test_an_error_of_the_reader_follows_the_rows_before_it(compiled: Compiled) -> None:
    def batches() -> Iterator[Any]:
        yield from table(3).to_batches()
        raise OSError("the disk is gone")

    answers = rationale.explain_batches(compiled, batches(), threads=2)
    assert next(answers).num_rows == 3
    with pytest.raises(OSError, match="the disk is gone"):
        next(answers)


def test_files_are_the_same_in_one_part_or_many(
    repository: Path, loans: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads begin a file while they finish the one before: no row changes its file or place."""
    names = [f"2026/part-{i}.parquet" for i in range(3)]
    parquet.write_table(table(0), loans / "2026" / "part-1.parquet")
    for to, most in (("whole", N + 2), ("parts", 70)):
        monkeypatch.setattr(arrow, "_MOST_ROWS", most)
        assert (
            explain(repository, "--input", loans, "--save", loans.parent / to, "--keep", "id").exit_code == 0
        )
    for name, count in zip(names, (N, 0, N + 2), strict=True):
        whole, parts = (parquet.read_table(loans.parent / to / name) for to in ("whole", "parts"))
        assert whole.num_rows == count
        assert whole.select(["row", "id"]).equals(parts.select(["row", "id"]))
        np.testing.assert_allclose(whole["explained_value"], parts["explained_value"], rtol=1e-5, atol=1e-6)


def test_a_file_that_changes_during_the_run_is_named(
    repository: Path, loans: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = answered_files._source

    def stale(*args: Any) -> Any:
        source = opened(*args)
        return replace(source, rows=source.rows - 1) if source.name.endswith("part-1.parquet") else source

    monkeypatch.setattr(answered_files, "_source", stale)
    result = explain(repository, "--input", loans, "--save", loans.parent / "reasons")
    assert "2026/part-1.parquet: the file changed" in result.output
    assert [path.name for path in (loans.parent / "reasons").rglob("*.*")] == ["part-0.parquet"]


def test_numbers_alone_need_no_pandas(repository: Path, loans: Path) -> None:
    """Its import would take a third of a second."""
    code = (
        "import sys; from pathlib import Path; from rationale.portfolios.portfolio import explain_portfolio\n"
        "explain_portfolio(Path(sys.argv[1]), sys.argv[2], sys.argv[3]); print('pandas' in sys.modules)"
    )
    command = [sys.executable, "-c", code, repository / "m", loans, loans.parent / "reasons"]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "False\n"


def test_other_columns_to_keep_are_another_answer(repository: Path, loans: Path) -> None:
    to = loans.parent / "reasons"
    for keep, written in (((), 3), (("--keep", "id"), 3), (("--keep", "id"), 0), ((), 3)):
        result = explain(repository, "--input", loans, "--save", to, *keep)
        assert f"wrote {written} files" in result.output
        names = parquet.read_schema(next(to.rglob("*.parquet"))).names
        assert ("id" in names) is bool(keep)


def test_progress_is_told_over_all_files(repository: Path, loans: Path) -> None:
    seen: list[tuple[int, int]] = []

    def progress(_: str, explained: int, total: int) -> None:
        seen.append((explained, total))

    portfolio.explain_portfolio(
        repository / "m", str(loans), str(loans.parent / "reasons"), progress=progress
    )
    counts = [count for count, _ in seen]
    assert counts == sorted(counts)
    assert seen[-1] == (3 * N + 3, 3 * N + 3)


def test_a_file_of_the_same_size_is_explained_again(repository: Path, loans: Path) -> None:
    """Other rows under the same name: known by when the file was written."""
    file, to = loans / "2026" / "part-0.parquet", loans.parent / "reasons"
    flat = {"compression": "none", "use_dictionary": False}
    sizes, actual = set(), []
    for seed in (1, 2):
        parquet.write_table(table(40, seed=seed), file, **flat)
        sizes.add(file.stat().st_size)
        assert (
            "wrote 1 files with 40 rows"
            in explain(repository, "--input", file.parent / "*0.parquet", "--save", to).output
        )
        actual.append(parquet.read_table(to / "part-0.parquet")["explained_value"])
    assert len(sizes) == 1
    assert not actual[0].equals(actual[1])


def test_a_longer_rest_of_a_killed_run_is_no_part_of_the_answer(repository: Path, loans: Path) -> None:
    to, whole = loans.parent / "reasons", loans.parent / "whole"
    assert explain(repository, "--input", loans, "--save", whole).exit_code == 0
    (to / "2026").mkdir(parents=True)
    expected = (whole / "2026" / "part-0.parquet").read_bytes()
    (to / "2026" / "part-0.parquet.part").write_bytes(2 * expected)
    assert explain(repository, "--input", loans, "--save", to).exit_code == 0
    assert (to / "2026" / "part-0.parquet").read_bytes() == expected
    assert sorted(path.suffix for path in to.rglob("*.*")) == [".parquet"] * 3


@pytest.mark.full
def test_what_was_killed_goes_on(repository: Path, loans: Path) -> None:
    to, whole = loans.parent / "reasons", loans.parent / "whole"
    parquet.write_table(table(100_000), loans / "2026" / "part-2.parquet")
    command = [sys.executable, "-m", "rationale", "explain", "m", "--repository", str(repository)]
    with subprocess.Popen([*command, "--input", str(loans), "--save", str(to)]) as process:
        end_s = time.monotonic() + 60
        while not list(to.rglob("part-2.parquet.part")):
            assert time.monotonic() < end_s
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    assert not list(to.rglob("part-2.parquet"))
    resumed = explain(repository, "--input", loans, "--save", to)
    assert "wrote 1 files with 100000 rows" in resumed.output
    assert explain(repository, "--input", loans, "--save", whole).exit_code == 0
    for i in range(3):
        name = f"2026/part-{i}.parquet"
        assert parquet.read_table(to / name).equals(parquet.read_table(whole / name))
    assert sorted(path.suffix for path in to.rglob("*.*")) == [".parquet"] * 3


def test_answers_and_what_engines_leave_behind_are_no_rows(repository: Path, loans: Path) -> None:
    nested = ("2026/_temporary/part-9.parquet", "2026/.hidden.parquet")
    for name in ("_temporary/part-9.parquet", "_metadata.parquet", ".hidden.parquet", *nested):
        (loans / name).parent.mkdir(exist_ok=True)
        (loans / name).write_bytes(b"no parquet")
    for line in ("wrote 3 files", "wrote 0 files with 0 rows"):
        assert line in explain(repository, "--input", loans, "--save", loans / "reasons").output


def test_a_name_with_brackets_is_a_file(repository: Path, loans: Path) -> None:
    parquet.write_table(table(4).drop(["id"]), loans / "[1].parquet")
    result = explain(repository, "--input", loans / "[1].parquet", "--save", loans / "one.parquet")
    assert result.exit_code == 0, result.output
    assert parquet.read_table(loans / "one.parquet").num_rows == 4


def test_two_runs_do_not_write_the_same_answer(repository: Path, loans: Path) -> None:
    to = loans.parent / "reasons"
    whole = answered_files._atomic_file_here(to / "2026" / "part-0.parquet")
    (to / "2026").mkdir(parents=True)
    with whole as out:
        out.write(b"the answer of a run that goes on")
        refused = explain(repository, "--input", loans, "--save", to)
        assert refused.exit_code == 2
        assert "2026/part-0.parquet: another run writes its answer" in refused.output
    assert (to / "2026" / "part-0.parquet").read_bytes() == b"the answer of a run that goes on"
    assert explain(repository, "--input", loans, "--save", to).exit_code == 0
    assert parquet.read_table(to / "2026" / "part-0.parquet").num_rows == N


@pytest.mark.usefixtures("without_locks")
def test_two_runs_without_locks_share_no_file(repository: Path, loans: Path) -> None:
    to = loans.parent / "reasons"
    (to / "2026").mkdir(parents=True)
    with answered_files._atomic_file(fs.LocalFileSystem(), str(to / "2026" / "part-0.parquet")) as out:
        out.write(b"the answer of a run that goes on")
        assert explain(repository, "--input", loans, "--save", to).exit_code == 0
        assert parquet.read_table(to / "2026" / "part-0.parquet").num_rows == N
    assert (to / "2026" / "part-0.parquet").read_bytes() == b"the answer of a run that goes on"
    assert explain(repository, "--input", loans, "--save", to).exit_code == 0
    assert parquet.read_table(to / "2026" / "part-0.parquet").num_rows == N
    assert sorted(path.name for path in (to / "2026").iterdir()) == [f"part-{i}.parquet" for i in range(3)]


def test_a_fault_leaves_nothing_half_written(
    repository: Path, loans: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = table(N).set_column(1, NAMES[-1], pa.array([1.0] * (N - 1) + [None]))
    parquet.write_table(broken, loans / "2026" / "part-1.parquet")
    monkeypatch.setattr(answered_files, "_GROUP", 10)
    monkeypatch.setattr(arrow, "_MOST_ROWS", 500)
    to = loans.parent / "reasons"
    result = explain(repository, "--input", loans, "--save", to)
    assert result.exit_code == 2
    assert "2026/part-1.parquet: rows 2000 to 2499: " in result.output
    assert [path.name for path in to.rglob("*.*")] == ["part-0.parquet"]


def test_a_fault_leaves_nothing_half_written_in_a_store(tmp_path: Path) -> None:
    """Neither under the name, where the old answer stays, nor beside it."""
    file = tmp_path / "part-0.parquet"
    file.write_bytes(b"old")
    stopped = pytest.raises(RuntimeError, match="stopped")
    with stopped, answered_files._atomic_file_in_store(fs.LocalFileSystem(), str(file)) as out:
        out.write(b"half")
        raise RuntimeError("stopped")
    assert [path.name for path in tmp_path.iterdir()] == ["part-0.parquet"]
    assert file.read_bytes() == b"old"


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[fs.S3FileSystem]:
    """Yield an object store with the buckets `loans` and `reasons`, which a child process finds too."""
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {"ENDPOINT_URL": f"http://{host}:{port}", "DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        monkeypatch.setenv(f"AWS_{name}", "test")
    store = fs.S3FileSystem(
        endpoint_override=f"{host}:{port}",
        scheme="http",
        region="us-east-1",
        allow_bucket_creation=True,
    )
    for bucket in ("loans", "reasons"):
        store.create_dir(bucket)
    yield store
    server.stop()


@pytest.mark.full
def test_an_object_store(compiled: Compiled, repository: Path, s3: fs.S3FileSystem) -> None:
    for i in range(2):
        parquet.write_table(table(N, seed=i), f"loans/2026/part-{i}.parquet", filesystem=s3)
    command = [sys.executable, "-m", "rationale", "explain", "m", "--repository", str(repository)]
    command += ["--input", "s3://loans/2026/*.parquet", "--save", "s3://reasons/2026"]
    for line in (f"wrote 2 files with {2 * N} rows", "wrote 0 files with 0 rows"):
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (result.returncode, result.stderr) == (0, "")
        assert result.stdout.startswith(f"{line} to s3://reasons/2026")
    answer = parquet.read_table("reasons/2026/part-1.parquet", filesystem=s3)
    expected = compiled.explain(rows(N, FEATURES, seed=1))
    np.testing.assert_allclose(
        answer["explained_value"], expected[compiled.manifest.explained_value][:, 0], rtol=1e-5, atol=1e-6
    )
    listed = s3.get_file_info(fs.FileSelector("reasons", recursive=True))
    assert sorted(item.base_name for item in listed if item.is_file) == ["part-0.parquet", "part-1.parquet"]


WRONG = {
    ("--input", "loans", "--save", "loans"): "--save loans",
    ("--input", "loans", "--html", "a.html", "--save", "to"): "leave --html out",
    ("--input", "loans"): "--save FOLDER",
    ("--input", "nowhere/*.parquet", "--save", "to"): "no such file or folder",
    ("--input", "loans/*.txt", "--save", "to"): "is a .parquet file that fits the pattern",
    ("--input", "gopher://loans/", "--save", "to"): "gopher",
    ("--input", "loans", "--save", "nonsense://there"): "nonsense",
    ("--input", "loans", "--save", "loans/2026/notes.txt"): "notes.txt",
    ("--input", "x.csv", "--keep", "id"): "--keep needs --save FILE",
    ("--input", "x.csv", "--keep", "id", "--save", "a.npz"): "save .csv",
    ("--input", "x.csv", "--threads", "2"): "--threads",
}


@pytest.mark.parametrize("arguments", WRONG, ids=" ".join)
def test_wrong_arguments(
    repository: Path, loans: Path, arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(loans.parent)
    result = explain(repository, *arguments)
    assert result.exit_code == 2, result.output
    assert WRONG[arguments] in result.output
    assert result.output.startswith("error: ")


def test_damaged_files_are_named(repository: Path, loans: Path) -> None:
    (loans / "2026" / "part-0.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(RationaleError, match=r"2026/part-0\.parquet"):
        portfolio.explain_portfolio(repository / "m", str(loans), str(loans.parent / "to"))
