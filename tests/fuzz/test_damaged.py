"""Files that are damaged, or written to do damage: an error of ours for each, within limited memory."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.fuzz.hostile import HEAVY, HOSTILE, SOUND_BUT_ODD
from tests.fuzz.mutations import SOUND, damaged, mutated
from tests.fuzz.process import Refuser
from tests.grid import each

REFUSED = {"InvalidModelError", "UnsupportedModelError", "CheckFailedError", "InvalidOptionError"}
KINDS: dict[str, Callable[[onnx.ModelProto, np.random.Generator], bytes]] = {
    "bytes": lambda model, random: damaged(model.SerializeToString(), random),
    "fields": mutated,
}


LONG = {"branches nested 16 deep"}


@pytest.fixture(scope="module")
def refuser() -> Iterator[Refuser]:
    with Refuser() as running:
        yield running


@each("name", HOSTILE, in_every_run=HOSTILE.keys() - LONG)
def test_a_hostile_model_is_refused(refuser: Refuser, tmp_path: Path, name: str) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(HOSTILE[name]().SerializeToString())
    answer = refuser.ask(path)
    assert answer["verdict"] in REFUSED, answer["text"]
    assert len(answer["text"]) < 2000


@pytest.mark.parametrize("name", SOUND_BUT_ODD)
def test_an_odd_model_is_explained(refuser: Refuser, tmp_path: Path, name: str) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(SOUND_BUT_ODD[name]().SerializeToString())
    answer = refuser.ask(path)
    assert answer["verdict"] == "compiled", answer["text"]


@pytest.mark.parametrize("name", HEAVY)
def test_a_heavy_model_is_explained_or_refused(refuser: Refuser, tmp_path: Path, name: str) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(HEAVY[name]().SerializeToString())
    answer = refuser.ask(path)
    assert answer["verdict"] in REFUSED | {"compiled"}, answer["text"]


def damage(refuser: Refuser, path: Path, kind: str, seeds: range) -> Counter[str]:
    """Damages each model in turn; how often the compiler said what."""
    models = itertools.cycle([make() for make in SOUND.values()])
    verdicts: Counter[str] = Counter()
    for seed, model in zip(seeds, models, strict=False):
        path.write_bytes(KINDS[kind](model, np.random.default_rng(seed)))
        answer = refuser.ask(path)
        assert answer["verdict"] in REFUSED | {"compiled"}, f"{kind}, seed {seed}: {answer['text']}"
        verdicts[answer["verdict"]] += 1
    return verdicts


@pytest.mark.parametrize("seeds", [range(30), pytest.param(range(30, 120), marks=pytest.mark.full)])
@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files(refuser: Refuser, tmp_path: Path, kind: str, seeds: range) -> None:
    verdicts = damage(refuser, tmp_path / "model.onnx", kind, seeds)
    assert verdicts["InvalidModelError"] > len(seeds) / 2
    assert verdicts["compiled"] < len(seeds) / 2, "the damage does none"


@pytest.mark.slow
@pytest.mark.parametrize("start", range(10_000, 15_000, 500))
@pytest.mark.parametrize("kind", KINDS)
def test_many_damaged_files(refuser: Refuser, tmp_path: Path, kind: str, start: int) -> None:
    print(damage(refuser, tmp_path / "model.onnx", kind, range(start, start + 500)))
