"""A graph of each family in the lowest ONNX Runtime that may serve it: Triton's may be older than ours."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from rationale import (
    AttnLrp,
    DeepShap,
    Deployment,
    ExactShap,
    IntegratedGradients,
    OpenReferences,
    TreeShap,
    compile_model,
)
from rationale.artifact.compiled import Compiled
from rationale.references.request_time import repeat_references
from scripts.triton.fetch import LIBRARIES
from tests.compiler.models import FEATURES, cnn, mlp, rows
from tests.references.trees import classifier, random_trees, regressor
from tests.references.trees import rows as rows_of_trees
from tests.tolerances import ACROSS_RUNTIMES

pytestmark = pytest.mark.full

X, REFERENCES = rows(5, FEATURES), rows(4, FEATURES, seed=1)
TREES, ROWS = random_trees(0, ["LEQ"], columns=1), rows_of_trees(1, 5)
CLASSES = random_trees(0, ["LEQ", "LT"], columns=3)
FAMILIES: dict[str, Callable[[], Compiled]] = {
    "a network": lambda: compile_model(mlp(last="Softmax"), DeepShap(REFERENCES), targets="all"),
    "images": lambda: compile_model(cnn(), AttnLrp(), targets=[0]),
    "references in chunks": lambda: compile_model(
        mlp(), DeepShap(rows(200, FEATURES)), targets="all", deployment=Deployment(memory_budget=50_000)
    ),
    "references of the request": lambda: compile_model(mlp(), DeepShap(OpenReferences(4)), targets="all"),
    "steps": lambda: compile_model(mlp(), IntegratedGradients(REFERENCES[:1]), targets="predicted"),
    "coalitions": lambda: compile_model(mlp(), ExactShap(REFERENCES), targets=[0]),
    "trees": lambda: compile_model(regressor(TREES), TreeShap(rows_of_trees(2, 4))),
    "trees of classes": lambda: compile_model(
        classifier(CLASSES, 3), TreeShap(covers=rows_of_trees(2, 500)), targets="predicted"
    ),
}
SHAPES = {"images": rows(5, 2, 6, 8), "trees": ROWS, "trees of classes": ROWS}

CHILD = """
import sys
import numpy as np, onnxruntime
model, rows, answers = sys.argv[1:]
session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
values = session.run(None, dict(np.load(rows)))
np.savez(answers, **{o.name: v for o, v in zip(session.get_outputs(), values)})
print(onnxruntime.__version__)
"""


@pytest.fixture(scope="module")
def lowest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages: the lowest that have a wheel for this Python."""
    folder = tmp_path_factory.mktemp("packages")
    wanted = ["numpy>=1.26", *(text for text in LIBRARIES if text.startswith("onnxruntime"))]
    options = ["--quiet", "--target", folder, "--resolution", "lowest-direct", "--only-binary", ":all:"]
    subprocess.run(
        [
            Path(sys.executable).with_name("uv"),
            "pip",
            "install",
            "--python",
            sys.executable,
            *options,
            *wanted,
        ],
        check=True,
    )
    return folder


@pytest.mark.parametrize("name", FAMILIES)
def test_it_answers_as_the_newest_does(name: str, lowest: Path, tmp_path: Path) -> None:
    compiled = FAMILIES[name]()
    inputs: dict[str, Any] = {"x": SHAPES.get(name, X)}
    if opened := compiled.manifest.open_references:
        inputs |= repeat_references(opened, {"x": REFERENCES}, None, len(X))
    onnx.save(compiled.model, tmp_path / "model.onnx")
    np.savez(tmp_path / "rows.npz", **inputs)
    command = [sys.executable, "-c", CHILD, "model.onnx", "rows.npz", "answers.npz"]
    done = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": str(lowest)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (lowest / f"onnxruntime-{done.stdout.strip()}.dist-info").is_dir()
    got, want = np.load(tmp_path / "answers.npz"), compiled.run(inputs)
    size = np.abs(want["explained_value"]).max()
    for output, value in want.items():
        assert np.abs(got[output] - value).max() <= ACROSS_RUNTIMES * size, output
