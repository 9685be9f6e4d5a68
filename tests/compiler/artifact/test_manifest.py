"""`explanation.json`: what goes in comes out, garbage is refused, and digests change when they should."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rationale import Compiled, DeepShap, Gradient, Manifest, compile_model
from rationale.errors import RepositoryError
from rationale.schema.manifest import Digests, ExplainedInput, TensorSpec
from tests.compiler.models import CLASSES, FEATURES, mlp, rows

R = rows(4, FEATURES)


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    return compile_model(mlp(), DeepShap(R), targets=[2, 0], feature_names=list("abcde"))


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "explanation.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_what_it_says(compiled: Compiled) -> None:
    manifest = compiled.manifest
    assert manifest.method.name == "deepshap"
    assert (manifest.explained_output, manifest.targets, manifest.target_count) == ("y", (2, 0), 2)
    assert [(v.name, v.datatype, v.shape) for v in manifest.inputs] == [("x", "FP32", (FEATURES,))]
    assert [(v.name, v.datatype, v.shape) for v in manifest.outputs] == [("y", "FP32", (CLASSES,))]
    assert manifest.explained[0].attributions == "x_attributions"
    assert manifest.explained[0].feature_names == ("a", "b", "c", "d", "e")
    assert manifest.references is not None
    assert (manifest.references.count, manifest.references.given) == (4, 4)
    base = compiled.explain(R)["base_value"]
    np.testing.assert_allclose(base, np.tile(manifest.references.base_value or (), (4, 1)), rtol=1e-6)
    assert (manifest.opset, manifest.ir_version, manifest.least_onnxruntime) == (21, 10, "1.18")
    assert set(manifest.tools) == {"rationale", "onnx", "onnxruntime", "numpy"}
    assert manifest.tools["onnx"] == onnx.__version__


def test_round_trip(tmp_path: Path, compiled: Compiled) -> None:
    assert Manifest.read(written(tmp_path, compiled.manifest.to_json())) == compiled.manifest


GARBAGE = {
    "nothing": "",
    "text": "not json",
    "bytes": b"\xff\xfe\x00",
    "a list": "[]",
    "a number": "1",
    "an empty object": "{}",
    "deep nesting": "[" * 100_000,
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage(tmp_path: Path, name: str) -> None:
    with pytest.raises(RepositoryError, match=r"explanation\.json: .*Compile"):
        Manifest.read(written(tmp_path, GARBAGE[name]))


CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "a later version": ({"version": 2}, r"version: Input should be 1\).*, or use the newer Rationale"),
    "an unknown key": ({"novelty": 1}, "novelty: Extra inputs"),
    "no references at all": (
        {"references": {"count": 0, "given": 4, "base_value": None}},
        "references.count",
    ),
    "another kind of targets": ({"targets": "best"}, "targets"),
    "inputs that are no tensors": ({"inputs": [1]}, r"inputs\.0"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_manifest_of_another_kind(tmp_path: Path, compiled: Compiled, name: str) -> None:
    change, words = CHANGES[name]
    text = json.dumps(json.loads(compiled.manifest.to_json()) | change)
    with pytest.raises(RepositoryError, match=rf"explanation\.json: not a manifest .*\({words}"):
        Manifest.read(written(tmp_path, text))


@pytest.mark.parametrize("key", ["model", "digests", "explained", "measured", "method"])
def test_a_missing_key_is_named(tmp_path: Path, compiled: Compiled, key: str) -> None:
    content = json.loads(compiled.manifest.to_json())
    del content[key]
    with pytest.raises(RepositoryError, match=rf"\({key}: Field required\)"):
        Manifest.read(written(tmp_path, json.dumps(content)))


def test_a_file_that_is_not_there_or_a_folder(tmp_path: Path) -> None:
    with pytest.raises(RepositoryError, match=os.strerror(errno.ENOENT)):
        Manifest.read(tmp_path / "explanation.json")
    with pytest.raises(RepositoryError, match=os.strerror(errno.EISDIR)):
        Manifest.read(tmp_path)


@settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
@given(place=st.floats(0, 1, exclude_max=True), byte=st.integers(0, 255))
def test_one_byte_changed(tmp_path: Path, compiled: Compiled, place: float, byte: int) -> None:
    content = bytearray(compiled.manifest.to_json().encode())
    content[int(place * len(content))] = byte
    try:
        assert isinstance(Manifest.read(written(tmp_path, bytes(content))), Manifest)
    except RepositoryError:
        return


# -- digests -------------------------------------------------------------------------------------------


def digests(model: onnx.ModelProto | None = None, method: Any = None, **options: Any) -> Digests:
    return compile_model(model or mlp(), method or DeepShap(R), **options).manifest.digests


def differing(a: Digests, b: Digests) -> set[str]:
    return {name for name in Digests.model_fields if getattr(a, name) != getattr(b, name)}


def nudged() -> np.ndarray:
    array = R.copy()
    array[0, 0] = np.nextafter(array[0, 0], np.float32(9))
    return array


SAME: dict[str, dict[str, Any]] = {
    "again": {},
    "references as float64": {"method": DeepShap(R.astype(np.float64))},
    "references by name": {"method": DeepShap({"x": R})},
    "the default target by name": {"targets": "predicted"},
    "the default output by name": {"output": "y"},
    "the default inputs by name": {"inputs": ["x"]},
    "feature names": {"feature_names": list("abcde")},
}
OTHER: dict[str, tuple[dict[str, Any], set[str]]] = {
    "a model of other weights": ({"model": mlp(seed=1)}, {"model"}),
    "a reference of another last bit": ({"method": DeepShap(nudged())}, {"references"}),
    "a reference more": ({"method": DeepShap(np.concatenate([R, R[:1]]))}, {"references"}),
    "weights": ({"method": DeepShap(R, [1, 2, 3, 4])}, {"references"}),
    "a target": ({"targets": [1]}, {"options"}),
    "another output": ({"output": "z2"}, {"options"}),
    "another method": ({"method": Gradient()}, {"options", "references"}),
}


def test_groups_of_other_members_are_another_explanation() -> None:
    """Though they are called the same, and no feature is left alone."""
    first, two, repeated = (
        digests(feature_names=list("abcde"), groups={"g": list(g), "h": list(h)})
        for g, h in (("ab", "cde"), ("ac", "bde"), ("ab", "cde"))
    )
    assert differing(first, two) == {"options", "explanation"}
    assert differing(first, repeated) == set()


@pytest.mark.parametrize("name", SAME)
def test_digests_that_stay(name: str) -> None:
    assert differing(digests(), digests(**SAME[name])) == set()


@pytest.mark.parametrize("name", OTHER)
def test_digests_that_change(name: str) -> None:
    options, expected = OTHER[name]
    assert differing(digests(), digests(**options)) == expected | {"explanation"}


def test_an_option_of_a_method_counts() -> None:
    assert differing(digests(method=Gradient()), digests(method=Gradient(times_input=True))) == {
        "options",
        "explanation",
    }


def test_digests_are_the_same_in_another_process_and_from_a_file(tmp_path: Path) -> None:
    script = (
        "from tests.compiler.models import mlp, rows\n"
        "from rationale import DeepShap, compile_model\n"
        "print(compile_model(mlp(), DeepShap(rows(4, 5))).manifest.digests.model_dump_json())"
    )
    root = Path(__file__).parents[3]
    result = subprocess.run(
        [sys.executable, "-c", script],
        cwd=root,
        env={"PYTHONHASHSEED": "7", "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    assert Digests.model_validate_json(result.stdout) == digests()
    onnx.save(mlp(), tmp_path / "m.onnx")
    assert compile_model(tmp_path / "m.onnx", DeepShap(R)).manifest.digests == digests()


@pytest.mark.parametrize(
    ("shape", "names", "is_given"),
    [
        ((2,), ("age", "income"), True),
        ((2,), ("x[0]", "income"), True),
        ((2,), ("x[0]", "x[1]"), False),
        ((2,), ("x[1]", "x[0]"), True),
        ((2,), None, False),
        ((1, 2), ("age", "income"), False),  # no table
        ((1,), ("x[0]",), False),
        ((1,), ("age",), True),
    ],
)
def test_names_that_somebody_gave(
    shape: tuple[int, ...], names: tuple[str, ...] | None, is_given: bool
) -> None:
    spec = TensorSpec(name="x", datatype="FP32", shape=shape)
    actual = ExplainedInput(tensor=spec, attributions="a", feature_names=names).given_names
    assert actual == (names if is_given else None)
