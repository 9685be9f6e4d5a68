"""Decisions of a real gateway in a real audit trail, and the repository that made them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from rationale import DeepShap, Deployment, TreeShap, compile_model
from rationale_service.app import create_app, create_backend
from rationale_service.settings import Settings
from tests.compiler.models import NAMES, mlp, rows
from tests.compiler.trees.test_text_files import AGE, CODE, HOUSING, model
from tests.references import trees as of
from tests.service import patient
from tests.service.conftest import serving

CREDIT = Path("examples/credit").resolve()
NETWORK = {
    "output": "y",
    "threshold": 0.5,
    "adverse": "below",
    "refer": [0.5, 0.52],
    "max_reasons": 2,
    "features": {"age": {"reason": "A"}, "cards": {"reason": "A"}, "years": {"reason": "Y"}},
    "groups": {"means": {"members": ["income", "debt"], "title": "Means", "reason": "M"}},
    "reasons": {"M": "Means", "A": {"text": "Age", "inquiry": True}, "Y": "Years", "R09": "Bankruptcy"},
    "knock_outs": [{"feature": "bankruptcies", "above": 0, "reason": "R09"}],
}
MARGIN = {"output": "y", "threshold": 0.5, "adverse": "above", "space": "margin", "least_share": 0.3}
WORDS: dict[str, Any] = {
    "output": "y[0]",
    "threshold": -2,
    "adverse": "above",
    "features": {"housing": {"reason": "H"}, "age": {"reason": "A"}, "code": {"reason": "H"}},
    "reasons": {"H": "Housing", "A": {"text": "Age", "missing": "Age not stated"}},
}
GAPS = {"output": "y[0]", "threshold": -4, "adverse": "above"}
EXAMPLE = {"output": "default_probability", "threshold": 0.2, "adverse": "above"}
TABLE = [dict(zip(NAMES, row, strict=True)) for row in rows(6, 5, seed=3).tolist()]
BANKRUPT = [{**row, "bankruptcies": i % 3 // 2} for i, row in enumerate(TABLE)]
INSTANCES: dict[str, list[dict[str, Any]]] = {
    "net": BANKRUPT,
    "once": BANKRUPT,
    "margin": TABLE,
    "words": [
        {"age": 0.25, "housing": "rent", "code": "03"},
        {"age": [0.25], "housing": ["rent"], "code": "03"},
        {"age": 0.75, "housing": "own", "code": "01"},
    ],
    "gaps": [
        dict.fromkeys(NAMES, 0.1) | {name: None for name in NAMES if name != keep} for keep in NAMES[:3]
    ],
    "credit": json.loads((CREDIT / "applicants.json").read_text())["instances"],
}


@dataclass(frozen=True)
class Decided:
    """
    Attributes:
        ids: of the decisions on INSTANCES, by model.
    """

    settings: Settings
    ids: dict[str, list[str]]
    answers: dict[str, dict[str, Any]]


def compile_all(folder: Path) -> None:
    network, references = mlp((5, 64, 64, 1), last="Sigmoid"), DeepShap(rows(7, 5))
    compile_model(network, references, feature_names=NAMES, decision=NETWORK).write(folder, "net")
    compile_model(network, references, feature_names=NAMES, decision=MARGIN).write(folder, "margin")
    deployment = Deployment(one_shot=True)
    compile_model(network, references, feature_names=NAMES, decision=NETWORK, deployment=deployment).write(
        folder, "once"
    )
    words = TreeShap(pa.table({"age": AGE, "housing": HOUSING, "code": CODE}))
    compile_model(model(), words, decision=WORDS).write(folder, "words")
    trees = of.regressor(of.random_trees(1, ("LEQ",)))
    compile_model(trees, TreeShap(of.rows(1, 4)), feature_names=NAMES, decision=GAPS).write(folder, "gaps")
    example = DeepShap(np.genfromtxt(CREDIT / "references.csv", np.float32, delimiter=",", skip_header=1))
    names = (CREDIT / "references.csv").read_text().splitlines()[0].split(",")
    compile_model(CREDIT / "credit.onnx", example, feature_names=names, decision=EXAMPLE).write(
        folder, "credit"
    )


def decide_all(repository: Path, instances: Mapping[str, Sequence[Any]], **more: Any) -> Decided:
    """What a gateway over it answers."""
    settings = Settings(repository=repository, request_timeout_s=60, **more)
    answers: dict[str, dict[str, Any]] = {}
    ids: dict[str, list[str]] = {}
    with serving(create_app(settings, create_backend(settings))) as address:
        for name, rows in instances.items():
            url = f"http://{address}/v1/models/{name}:decide"
            answer = patient.post(url, json={"instances": rows})
            assert answer.status_code == 200, answer.text
            decisions = answer.json()["decisions"]
            ids[name] = [decision["id"] for decision in decisions]
            answers |= {decision["id"]: decision for decision in decisions}
    return Decided(settings, ids, answers)
