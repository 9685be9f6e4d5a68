"""Explainers' options, as the compiler takes them or refuses them."""

from pathlib import Path
from typing import Any

import pytest

from rationale import extensions
from rationale_service.errors import InvalidExplainerError
from rationale_service.models.explainers.spec import ExplainerSpec, MethodOptions, file_digest
from tests.compiler.packages import Packages, packages

__all__ = ["packages"]  # a fixture, found by its name


def lrp(**options: object) -> ExplainerSpec:
    return ExplainerSpec(method="lrp", options=MethodOptions.model_validate(options))


def test_lrp_rules_in_both_spellings() -> None:
    rules = ["Conv=gamma:0.25", "Gemm=gamma(gamma=0.25)", "first=zbox(low=-1, high=1)"]
    assert lrp(rule=rules).requested(referenced=False).options["rule"] == rules
    for rule, says in (
        ("first=zbox(low=-1)", "low and high must be given together"),
        ("first=zbox(low=open('/etc/passwd'))", "parameters are literals"),
        ("first=box", "there are zero, epsilon"),
    ):
        with pytest.raises(InvalidExplainerError, match=says):
            lrp(rule=[rule]).requested(referenced=False)


SPEC: dict[str, Any] = {"method": "deepshap", "reference_set": "approved", "features": ["a", "b"]}


@pytest.mark.parametrize(
    ("change", "model", "references", "is_same"),
    [
        ({}, "m", "r", True),
        ({"default": True}, "m", "r", True),
        ({"reference_set": "another name"}, "m", "r", True),  # of the same rows
        ({"method": "gradient"}, "m", "r", False),
        ({"features": ["b", "a"]}, "m", "r", False),
        ({"memory_budget": "2GB"}, "m", "r", False),
        ({}, "another", "r", False),
        ({}, "m", "other rows", False),
        ({}, "m", None, False),
    ],
)
def test_an_artifact_is_made_anew_for_what_determines_it(
    change: dict[str, Any], model: str, references: str | None, is_same: bool
) -> None:
    digest = ExplainerSpec.model_validate(SPEC).digest("m", "r")
    assert (ExplainerSpec.model_validate(SPEC | change).digest(model, references) == digest) is is_same


@pytest.mark.parametrize(
    ("files", "is_same"),
    [
        ({"model.onnx": "graph", "model.data": "weights"}, True),
        ({"model.onnx": "graph", "other.data": "weights"}, False),
        ({"model.onnx": "graph", "model.db": "weights"}, False),  # in the same order
        ({"model.onnx": "weights", "model.data": "graph"}, False),
        ({"model.onnx": "graph", "model.data": "other"}, False),
        ({"model.onnx": "graph"}, False),
        ({"model.onnx": "graphweights", "model.data": ""}, False),
    ],
)
@pytest.mark.parametrize("name", ["credit", "another"])
def test_the_digest_of_files_is_of_their_names_too(
    files: dict[str, str], is_same: bool, name: str, tmp_path: Path
) -> None:
    digests = []
    for i, (entry, own) in enumerate(
        [("credit", {"model.onnx": "graph", "model.data": "weights"}), (name, files)]
    ):
        folder = tmp_path / str(i) / entry / "1"
        folder.mkdir(parents=True)
        for file, text in own.items():
            (folder / file).write_text(text)
        digests.append(file_digest(folder))
    assert (digests[0] == digests[1]) is (is_same and name == "credit")


def test_another_version_of_a_package_is_another_explainer(packages: Packages) -> None:
    spec = lrp(rule=["Conv=gamma:0.25"])
    digests = {spec.digest("model", None)}
    for version in ("1.2", "1.3"):
        packages.install_absolute(version)
        assert spec.digest("model", None) in digests  # a process does not change its mind
        extensions.packages.cache_clear()
        digests.add(spec.digest("model", None))
    assert len(digests) == 3
