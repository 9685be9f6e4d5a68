"""Methods and their options on the command line."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner, Result

from rationale import (
    ExactShap,
    ExpectedGradients,
    IntegratedGradients,
    Manifest,
    PermutationShap,
    SmoothGrad,
    compile_model,
)
from rationale.artifact.entry import open_entry
from rationale.errors import InvalidOptionError
from rationale.methods.methods import make_method
from rationale.schema.methods import METHODS
from rationale_service.cli.main import app
from tests.compiler.models import FEATURES, NAMES, mlp, rows

REFERENCES = rows(4, FEATURES)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    onnx.save(mlp(), "m.onnx")
    np.savetxt("r.csv", REFERENCES, delimiter=",", header=",".join(NAMES), comments="")
    np.save("r.npy", REFERENCES)
    return tmp_path


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


COMMANDS: dict[str, tuple[str, Any]] = {
    "integrated-gradients from zeros": ("--method integrated-gradients", IntegratedGradients()),
    "integrated-gradients": (
        "--method integrated-gradients --references r.npy --steps 7 --standard-error",
        IntegratedGradients(REFERENCES, 7, standard_error=True),
    ),
    "expected-gradients": (
        "--method expected-gradients --references r.npy --samples 12 --seed 3",
        ExpectedGradients(REFERENCES, 12, 3),
    ),
    "smoothgrad": (
        "--method smoothgrad --samples 9 --sigma 0.25 --seed 2 --standard-error",
        SmoothGrad(9, 0.25, 2, standard_error=True),
    ),
    "exactshap": ("--method exactshap --references r.npy", ExactShap(REFERENCES)),
    "permutationshap": (
        "--method permutationshap --references r.npy --permutations 3 --seed 2 --standard-error",
        PermutationShap(REFERENCES, 3, 2, standard_error=True),
    ),
    "permutationshap by default": (
        "--method permutationshap --references r.npy",
        PermutationShap(REFERENCES),
    ),
    "smoothgrad by default": ("--method smoothgrad --sigma 0.1", SmoothGrad(50, 0.1)),
}


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.usefixtures("place")
def test_a_command_is_its_method(name: str) -> None:
    arguments, method = COMMANDS[name]
    result = call("compile", "m.onnx", "--name", "m", *arguments.split())
    assert result.exit_code == 0, result.output
    manifest = Manifest.read(Path("model_repository/m_explain/explanation.json"))
    fresh = compile_model("m.onnx", method)
    assert manifest.method == fresh.manifest.method
    assert manifest.digests == fresh.manifest.digests
    x = rows(3, FEATURES, seed=8)
    written, expected = open_entry(Path("model_repository"), "m").explain(x), fresh.explain(x)
    for output, values in expected.items():
        assert np.array_equal(written[output], values), output


@pytest.mark.usefixtures("place")
def test_errors_are_told_beside_the_attributions() -> None:
    options = "--method expected-gradients --references r.csv --samples 12 --standard-error".split()
    result = call("compile", "m.onnx", "--name", "m", *options)
    assert re.search(r"completeness gap .*; \d+\.\d standard errors", result.stdout)
    assert re.search("warning: attributions add up .* four times the samples halve it", result.stderr)
    result = call("explain", "m", "--input", "r.csv", "--top", "1")
    answer = open_entry(Path("model_repository"), "m").explain(REFERENCES)
    first = answer["x_attributions"][0, 0]
    k = int(np.abs(first).argmax())
    value, _, error, feature = result.stdout.splitlines()[1].split()
    assert (float(value), feature) == (pytest.approx(float(first[k]), rel=1e-4), NAMES[k])
    assert float(error) == pytest.approx(float(answer["x_standard_error"][0, 0, k]), rel=0.05)


REFUSED: dict[str, tuple[str, str]] = {
    "an unknown method": ("--method magic", r"choose deepshap, gradient, .* smoothgrad"),
    "an unknown method with references": ("--method magic --references r.npy", "choose deepshap, gradient"),
    "steps of deepshap": (
        "--references r.npy --steps 5",
        r"--method deepshap takes no --steps: that is for integrated-gradients\.",
    ),
    "samples of the gradient": (
        "--method gradient --samples 5",
        r"takes no --samples: that is for expected-gradients and smoothgrad\.",
    ),
    "an error of the gradient": ("--method gradient --standard-error", "takes no --standard-error: that is"),
    "references of smoothgrad": (
        "--method smoothgrad --sigma 1 --references r.npy",
        "takes no --references: that is for deepshap, integrated-gradients, expected-gradients, treeshap, "
        "auto, exactshap and permutationshap",
    ),
    "smoothgrad without sigma": ("--method smoothgrad", "needs --sigma: the noise's standard deviation"),
    "expected-gradients without references": (
        "--method expected-gradients",
        "needs --references FILE: typical rows to compare with",
    ),
    "a surplus option before a file is read": (
        "--method gradient --references none.npy",
        "takes no --references",
    ),
    "no steps": ("--method integrated-gradients --steps 0", "steps must be a whole number, 1 to 1000, not 0"),
    "one sample": ("--method expected-gradients --references r.npy --samples 1", "whole number, 2 to 100000"),
    "half a step": ("--method integrated-gradients --steps 2.5", "Invalid value for '--steps'"),
    "a negative seed": ("--method smoothgrad --sigma 1 --seed -1", "seed must be a whole number, 0 or more"),
    "no noise": ("--method smoothgrad --sigma 0", "not zero throughout"),
    "noise that is no number": ("--method smoothgrad --sigma nan", "must be finite"),
    "an error of one baseline": (
        "--method integrated-gradients --standard-error",
        "at least two different references",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_user_error(place: Path, name: str) -> None:
    arguments, words = REFUSED[name]
    result = call("compile", "m.onnx", "--name", "m", *arguments.split())
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit)
    assert re.search(words, re.sub(r"[\s│]+", " ", result.stderr)), result.stderr
    assert not (place / "model_repository").exists()


def test_help_names_every_method() -> None:
    help_text = call("compile", "--help").stdout
    for name in METHODS:
        assert name in re.sub(r"[\s│]+", " ", help_text), name


def test_a_method_from_python_by_name() -> None:
    method = make_method("expected-gradients", REFERENCES, {"samples": 5, "seed": None, "steps": None})
    assert isinstance(method, ExpectedGradients)
    assert (method.samples, method.seed, method.references is REFERENCES) == (5, 0, True)
    with pytest.raises(InvalidOptionError, match=r"gradient .*--depth"):
        make_method("gradient", None, {"depth": 3})
