"""Reference sets: whatever comes is read with distrust, kept whole by its content, and gone when deleted."""

import io
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest
from pyarrow import parquet

from rationale.tables.archives import write_npz
from rationale_service.engine.checks import check_name
from rationale_service.errors import (
    InvalidInputError,
    MalformedError,
    StateUnavailableError,
    TooLargeError,
    UnknownResourceError,
)
from rationale_service.models.references.formats import MEDIA_TYPES, ReferenceRows, parse_rows
from rationale_service.models.references.service import ReferenceSetService
from rationale_service.models.references.store import ReferenceSets
from rationale_service.repository.registry import ModelRegistry, read_repository
from rationale_service.state.state import State
from tests.service.handmade import FEATURES, X

LIMIT = 1 << 20
R = X[:3]


@pytest.fixture(scope="module")
def registry(repository: Path) -> ModelRegistry:
    return read_repository(repository)


def parsed(
    registry: ModelRegistry, body: bytes, kind: str, model: str = "score", limit: int = LIMIT
) -> ReferenceRows:
    return parse_rows(body, kind, registry.entry(model), registry.explainer(model).manifest, limit)


def npz(**arrays: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def npy(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


def csv(rows: Any, header: tuple[str, ...] = FEATURES) -> bytes:
    return "\n".join([",".join(header), *(",".join(map(repr, row)) for row in rows)]).encode()


def table(columns: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    parquet.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


def archive(members: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as file:
        for name, data in members.items():
            file.writestr(name, data)
    return buffer.getvalue()


BY_KIND: dict[str, tuple[str, Callable[[], bytes]]] = {
    "npz": (".npz", lambda: npz(x=R)),
    "npz without a name": (".npz", lambda: npz(arr_0=R)),
    "npz in float64": (".npz", lambda: npz(x=R.astype(np.float64))),
    "npz by columns": (".npz", lambda: npz(x=np.asfortranarray(R))),
    "npy": (".npy", lambda: npy(R)),
    "csv": (".csv", lambda: csv(R.tolist())),
    "csv without a header": (".csv", lambda: csv(R.tolist()[1:], tuple(map(str, R.tolist()[0])))),
    "csv with more columns": (
        ".csv",
        lambda: csv([["a", *row[::-1]] for row in R.tolist()], ("id", *FEATURES[::-1])),
    ),
    "parquet": (".parquet", lambda: table(dict(zip(FEATURES, R.T, strict=True)))),
    "parquet with lists aside": (
        ".parquet",
        lambda: table({"more": [[1.0]] * 3, **dict(zip(FEATURES, R.T, strict=True))}),
    ),
    "rows": (".json", lambda: orjson.dumps(R.tolist())),
    "named rows": (
        ".json",
        lambda: orjson.dumps({"references": [dict(zip(FEATURES, row, strict=True)) for row in R.tolist()]}),
    ),
}


@pytest.mark.parametrize("name", BY_KIND)
def test_every_kind_of_file_gives_the_same_rows(registry: ModelRegistry, name: str) -> None:
    kind, make = BY_KIND[name]
    rows = parsed(registry, make(), kind)
    assert list(rows.arrays) == ["x"]
    assert rows.arrays["x"].dtype == np.float32
    np.testing.assert_array_equal(rows.arrays["x"], R)
    assert rows.weights is None


def test_several_inputs(registry: ModelRegistry) -> None:
    a, b = np.ones((3, 2)), np.zeros((3, 2, 2))
    rows = parsed(registry, npz(a=a, b=b), ".npz", "pair")
    assert {name: array.shape for name, array in rows.arrays.items()} == {"a": (3, 2), "b": (3, 2, 2)}
    named = orjson.dumps([{"left": 1, "right": 1, "b": [[0, 0], [0, 0]]}] * 3)
    assert parsed(registry, named, ".json", "pair").digest == rows.digest


def test_rows_of_one_number_each(registry: ModelRegistry) -> None:
    entry, manifest = registry.entry("score"), registry.explainer("score").manifest
    entry = replace(entry, inputs=tuple(spec.model_copy(update={"shape": ()}) for spec in entry.inputs))
    rows = parse_rows(npz(x=R[:, 0]), ".npz", entry, manifest, LIMIT)
    np.testing.assert_array_equal(rows.arrays["x"], R[:, 0])
    with pytest.raises(InvalidInputError, match=r"shape \[\], but .* K at least 1"):
        parse_rows(npz(x=R[0, 0]), ".npz", entry, manifest, LIMIT)


def test_weights(registry: ModelRegistry) -> None:
    w = [3.0, 1.0, 0.0]
    rows = parsed(registry, npz(x=R, reference_weights=w), ".npz")
    np.testing.assert_array_equal(rows.weights, w)
    body = orjson.dumps({"references": R.tolist(), "weights": w})
    np.testing.assert_array_equal(parsed(registry, body, ".json").weights, w)
    assert parsed(registry, npz(x=R, reference_weights=[2.0] * 3), ".npz").weights is None


class Trap:
    """What runs code when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("/tmp/unpickled-by-the-gateway",)  # noqa: S108


def header_of(shape: str, data: bytes = b"", descr: str = "'<f4'") -> bytes:
    """A .npy with a header of one's own."""
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (64 - (len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


def lying_archive() -> bytes:
    """Says of a member that it is small."""
    body = bytearray(archive({"x.npy": npy(np.zeros((50_000, 4), np.float32))}))
    for mark, offset in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        position = body.find(mark) + offset
        body[position : position + 4] = struct.pack("<I", 128 + 16)
    return bytes(body)


def damaged(body: bytes, position: int = -120) -> bytes:
    return body[:position] + bytes([body[position] ^ 0xFF]) + body[position + 1 :]


BOMB = archive({"x.npy": npy(np.zeros((500_000, 4), np.float32))})
HOSTILE: dict[str, tuple[str, bytes, type[Exception]]] = {
    "a pickle in npy": (".npy", npy(np.array([Trap()], object)), InvalidInputError),
    "a pickle in npz": (".npz", archive({"x.npy": npy(np.array([Trap()], object))}), InvalidInputError),
    "a bare pickle": (".npy", pickle.dumps(Trap()), InvalidInputError),
    "a pickle named npz": (".npz", pickle.dumps(Trap()), InvalidInputError),
    "a structured array": (".npy", npy(np.zeros(3, [("a", "<f4"), ("b", "O")])), InvalidInputError),
    "strings": (".npy", npy(np.array([["a"] * 4])), InvalidInputError),
    "complex numbers": (".npy", npy(np.ones((3, 4), complex)), InvalidInputError),
    "dates": (".npy", npy(np.zeros((3, 4), "datetime64[s]")), InvalidInputError),
    "a bomb": (".npz", BOMB, TooLargeError),
    "many small bombs": (".npz", archive({f"{i}.npy": b"\0" * 10_000 for i in range(200)}), TooLargeError),
    "many members": (".npz", archive({f"{i}.npy": b"" for i in range(300)}), InvalidInputError),
    "a lying archive": (".npz", lying_archive(), InvalidInputError),
    "a wrong checksum": (
        ".npz",
        damaged(archive({"x.npy": npy(R)}, zipfile.ZIP_STORED)),
        InvalidInputError,
    ),
    "a member that is no array": (".npz", archive({"x.npy": npy(R), "a.py": b"1"}), InvalidInputError),
    "a member out of its folder": (".npz", archive({"../../x.npy": npy(R)}), InvalidInputError),
    "bzip2": (".npz", archive({"x.npy": npy(R)}, zipfile.ZIP_BZIP2), InvalidInputError),
    "an endless header": (".npy", b"\x93NUMPY\x02\x00\xff\xff\xff\x7f" + b" " * 1000, InvalidInputError),
    "a header that is code": (".npy", header_of("__import__('os').abort()"), InvalidInputError),
    "a header that wraps around": (".npy", header_of("(2**62, 4)"), InvalidInputError),
    "a large shape": (".npy", header_of(f"({1 << 62}, 4)"), InvalidInputError),
    "a negative shape": (".npy", header_of("(-1, -4)", b"1234" * 4), InvalidInputError),
    "a deep header": (".npy", header_of("(" * 4000 + ")" * 4000), InvalidInputError),
    "too long an npy": (".npy", npy(np.zeros((LIMIT, 4), np.float32)), TooLargeError),
    "nothing": (".npz", b"", InvalidInputError),
    "no member": (".npz", archive({}), InvalidInputError),
    "csv of bytes": (".csv", bytes(range(256)), InvalidInputError),
    "csv of words": (".csv", csv([["a"] * 4]), InvalidInputError),
    "csv without rows": (".csv", csv([]), InvalidInputError),
    "csv with NaN": (".csv", csv([["nan"] * 4]).replace(b"'", b""), InvalidInputError),
    "ragged csv": (".csv", csv([[1, 2, 3, 4], [1, 2]]), InvalidInputError),
    "a long line of csv": (".csv", b"1," * LIMIT, TooLargeError),
    "many numbers of csv": (".csv", csv([]) + b"\n1,2,3,4" * 40_000, TooLargeError),
    "missing columns": (".csv", csv([[1, 2, 3]], FEATURES[:3]), InvalidInputError),
    "parquet of bytes": (".parquet", b"PAR1" + bytes(100) + b"PAR1", InvalidInputError),
    "parquet cut off": (".parquet", BY_KIND["parquet"][1]()[:-50], InvalidInputError),
    "nested parquet": (
        ".parquet",
        table({name: [[1.0], [2.0]] for name in FEATURES}),
        InvalidInputError,
    ),
    "structures in parquet": (
        ".parquet",
        table({name: [{"a": 1.0}] for name in FEATURES}),
        InvalidInputError,
    ),
    "words in parquet": (".parquet", table({name: ["a"] for name in FEATURES}), InvalidInputError),
    "nulls in parquet": (".parquet", table({name: [None, 1.0] for name in FEATURES}), InvalidInputError),
    "a parquet bomb": (
        ".parquet",
        table({name: np.zeros(200_000) for name in FEATURES}),
        TooLargeError,
    ),
    "JSON of nothing": (".json", b"", MalformedError),
    "deep JSON": (".json", b"[" * 20_000, MalformedError),
    "JSON of another kind": (".json", b'{"rows": []}', MalformedError),
    "JSON of one number": (".json", b"1", MalformedError),
    "no rows in JSON": (".json", b"[]", InvalidInputError),
    "words in JSON": (".json", b'[["a", "b", "c", "d"]]', InvalidInputError),
    "large JSON": (".json", orjson.dumps(np.zeros((20_000, 4)).tolist()), TooLargeError),
    "weights in words": (".json", b'{"references": [[1,2,3,4]], "weights": ["a"]}', InvalidInputError),
    "negative weights": (".npz", npz(x=R, reference_weights=[1, -1, 1]), InvalidInputError),
    "too few weights": (".npz", npz(x=R, reference_weights=[1, 2]), InvalidInputError),
    "no weight at all": (".npz", npz(x=R, reference_weights=[0, 0, 0]), InvalidInputError),
    "another input": (".npz", npz(y=R), InvalidInputError),
    "another width": (".npz", npz(x=R[:, :3]), InvalidInputError),
    "another rank": (".npz", npz(x=R[0]), InvalidInputError),
    "empty": (".npz", npz(x=R[:0]), InvalidInputError),
    "infinity": (".npz", npz(x=np.full_like(R, np.inf)), InvalidInputError),
    "too large for float32": (".npz", npz(x=R.astype(np.float64) * 1e300), InvalidInputError),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_cannot_be_a_reference_set_is_refused(registry: ModelRegistry, name: str) -> None:
    kind, body, refusal = HOSTILE[name]
    with pytest.raises(refusal) as raised:
        parsed(registry, body, kind)
    assert len(str(raised.value)) < 3000
    assert not Path("/tmp/unpickled-by-the-gateway").exists()  # noqa: S108


@pytest.mark.parametrize("kind", sorted(set(MEDIA_TYPES.values())))
def test_one_byte_changed_is_read_or_refused(registry: ModelRegistry, kind: str) -> None:
    body = next(make() for media_type, make in BY_KIND.values() if media_type == kind)
    random = np.random.default_rng(0)
    for position in random.integers(0, len(body), 150):
        changed = bytearray(body)
        changed[position] = random.integers(0, 256)
        try:
            rows = parsed(registry, bytes(changed), kind)
        except (InvalidInputError, MalformedError, TooLargeError):
            continue
        assert np.isfinite(rows.arrays["x"]).all()


def test_integers_must_be_whole(registry: ModelRegistry) -> None:
    entry = registry.entry("score")
    manifest = registry.explainer("score").manifest
    rows = parse_rows(npz(x=R.astype(np.int64)), ".npz", entry, manifest, LIMIT)
    assert rows.arrays["x"].dtype == np.float32


# --- the store --------------------------------------------------------------------------------------------


@pytest.fixture
def state(tmp_path: Path) -> State:
    return State(tmp_path / "state")


@pytest.fixture
def sets(state: State) -> ReferenceSets:
    return ReferenceSets(state)


ROWS, OTHER = ReferenceRows({"x": R}), ReferenceRows({"x": R + 1}, np.array([1.0, 2, 3]), FEATURES)


def files(state: State) -> list[str]:
    return sorted(path.stem for path in state.references.iterdir())


def test_a_set_is_kept_as_the_compiler_reads_it(sets: ReferenceSets, state: State) -> None:
    from rationale.tables.files import read_rows

    stored = sets.put("typical", "score", OTHER)
    assert (stored.rows, stored.weighted, stored.features) == (3, True, list(FEATURES))
    assert stored.inputs == {"x": {"datatype": "FP32", "shape": [3, 4]}}
    table = read_rows(sets.path(stored.digest), FEATURES)
    np.testing.assert_array_equal(table.arrays["x"], OTHER.arrays["x"])
    np.testing.assert_array_equal(table.weights, OTHER.weights)
    assert table.columns == FEATURES
    assert ReferenceSets(state).get("typical") == stored
    assert sets.path(stored.digest).stat().st_mode & 0o077 == 0


def test_one_file_however_many_names(sets: ReferenceSets, state: State) -> None:
    first, second = (sets.put(name, "score", ROWS) for name in ("a", "b"))
    assert first.digest == second.digest
    assert files(state) == [first.digest]
    assert sets.named(first.digest) == ["a", "b"]
    sets.remove("a")
    assert files(state) == [first.digest]
    sets.remove("b")
    assert files(state) == []
    with pytest.raises(UnknownResourceError):
        sets.path(first.digest)


def test_putting_the_same_again_changes_nothing(sets: ReferenceSets) -> None:
    assert sets.put("a", "score", ROWS) == sets.put("a", "score", ROWS)


@pytest.mark.parametrize(
    ("weights", "shares"), [(None, [0.5, 0.25]), ([1, 1, 1, 1], [0.5, 0.25]), ([1, 0, 5, 4], [0.6, 0.4])]
)
def test_shares_of_a_set_add_up_to_one_whatever_its_weights(
    sets: ReferenceSets, weights: list[float] | None, shares: list[float]
) -> None:
    """Of words, and of missing numbers."""
    arrays = {"home": np.array([["own"], ["rent"], ["own"], ["kin"]]), "age": np.zeros((4, 1), np.float32)}
    arrays["age"][3] = np.nan
    weighed = None if weights is None else np.array(weights, float)
    nothing: Any = None
    service = ReferenceSetService(sets, nothing, nothing, LIMIT)
    for name, array in arrays.items():
        stored = sets.put(name, "m", ReferenceRows({"x": array}, weighed, (name,)))
        (spread,) = service.spreads(stored)
        if name == "home":
            told = {category.value: category.share for category in spread.categories}
            assert sum(told.values()) == pytest.approx(1)
            assert [told["own"], told["kin"]] == pytest.approx(shares)
        else:
            assert spread.missing == pytest.approx(shares[1])


def test_a_set_is_as_old_as_its_content(state: State) -> None:
    """The oldest ones make room."""
    times = iter(range(1, 9))
    sets = ReferenceSets(state, clock=lambda: next(times))
    created = [
        sets.put(name, "score", rows).created_s for name, rows in (("a", ROWS), ("b", OTHER), ("a", ROWS))
    ]
    assert created == [1, 2, 1]
    assert sets.put("a", "score", OTHER).created_s == 3
    assert ReferenceSets(state).get("a").created_s == 3
    sets.remove("a")
    assert sets.put("a", "score", OTHER).created_s == 4


def test_another_content_under_a_name(sets: ReferenceSets, state: State) -> None:
    sets.put("a", "score", ROWS)
    stored = sets.put("a", "score", OTHER)
    assert files(state) == [stored.digest]
    assert [stored_set.name for stored_set in sets.all()] == ["a"]


def test_the_digest_is_of_all_there_is() -> None:
    variants = [
        ROWS,
        OTHER,
        ReferenceRows({"y": R}),
        ReferenceRows({"x": R.astype(np.float64)}),
        ReferenceRows({"x": R}, None, FEATURES),
    ]
    variants += [
        ReferenceRows({"x": R}, np.array([1.0, 2, 3])),
        ReferenceRows({"x": R[:, :2]}),
        ReferenceRows({"x": R[::-1]}),
    ]
    assert len({variant.digest for variant in variants}) == len(variants)


@pytest.mark.parametrize("name", ["", ".", "..", "a..b", "a/b", "../a", "a\0", "-a", "ä", "a" * 101, "a\n"])
def test_names_that_go_nowhere(name: str) -> None:
    with pytest.raises(InvalidInputError):
        check_name(name, "a reference set's", InvalidInputError)


def test_nothing_is_made_by_looking(sets: ReferenceSets, state: State) -> None:
    assert sets.all() == []
    with pytest.raises(UnknownResourceError):
        sets.remove("a")
    assert not state.folder.exists()


def test_a_full_disk_leaves_what_was_there(
    sets: ReferenceSets, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = sets.put("a", "score", ROWS)

    def full(file: Any, arrays: Any) -> None:
        write_npz(file, arrays)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("rationale_service.models.references.store.write_npz", full)
    with pytest.raises(StateUnavailableError, match="No space left"):
        sets.put("a", "score", OTHER)
    assert sets.get("a") == stored
    assert files(state) == [stored.digest]
    assert list(state.staging.iterdir()) == []


def test_a_file_without_a_record_goes_at_the_start(sets: ReferenceSets, state: State) -> None:
    stored = sets.put("a", "score", ROWS)
    (state.references / f"{'0' * 64}.npz").write_bytes(b"left by a crash")
    sets.recover()
    assert files(state) == [stored.digest]
