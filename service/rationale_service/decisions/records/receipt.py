"""`rationale receipt`: a decision with everything to recompute it, without Rationale or the lender."""

import shutil
import tempfile
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnxruntime as ort
import orjson

from rationale.decisions.rows import margin_output, profile_of, score_location
from rationale.errors import InvalidOptionError, RepositoryError
from rationale.schema.manifest import EXPLAIN, Manifest
from rationale_service.decisions.audit.trail import Case, RecordedDecision
from rationale_service.decisions.decider import inputs_of
from rationale_service.decisions.records.cases import describe_case, history
from rationale_service.decisions.records.replay import UNKNOWN_INPUTS, describe_altered_files
from rationale_service.engine.checks import Faults
from rationale_service.repository.entry import Entry

README = """\
A decision, and what recomputes it
==================================

request.json   what the lender's application sent
answer.json    what it was answered: the decision, its score, and its reasons
profile.json   the lender's rules: threshold, groups of features, codes and texts of reasons
model.onnx     the model and its explanation in one graph, with the rows that applicants are compared with
graph.json     which inputs and outputs of the graph are what
check.py       computes the decision again and compares; it exits with 1 where a number differs

To run it, with Python 3.11 or newer:

    pip install onnxruntime=={version} numpy
    python check.py

The score is what the model makes of the request. Each feature's attribution is how much of the score, counted
from base_value, the mean over the rows that applicants are compared with, goes back to it. Attributions that
speak against the applicant are added up by reason code; the largest are the principal reasons. A knock-out
declines by itself, and is then the reason.

If the answer has recourse, each of its plans is computed too: the changed request gets the plan's score and
decision, changes nothing that the rules do not name as actionable, and has its values within their regions.
A plan says what the model would have decided. It is no promise.

The graph that ran has the digest {graph}:
`sha256sum {files} | sha256sum` prints it.

model.onnx holds the rows that applicants are compared with. They may be people's: hand this folder on only
to somebody who may see them.
"""


_FILES = "{files}"
JUDGED = """\
A person's decision
===================

request.json   the judgment, as the lender recorded it
answer.json    the decision: who judged, and by which reasons
reviews.json   the decision that was reviewed, its contests and its reviews

A person judged in place of a model: there is nothing to compute again.
"""


def write_receipt(
    decision: RecordedDecision, entry: Entry | None, folder: Path, case: Case | None = None
) -> None:
    """Write the receipt's folder, all or nothing.

    Args:
        entry: entry that decided, see `Replayer.entry`; None if a person did.
        case: case of the decision, whose contests and reviews the receipt tells; None if it has none.

    Raises:
        InvalidOptionError: if the inputs are not known, the profile has features that it never discloses, or
            the folder exists already or cannot be written.
        RepositoryError: if the entry's files differ from those that decided.
    """
    if decision.kind == "contest":
        raise InvalidOptionError(f"{decision.id} is a contest: only decisions have a receipt")
    if folder.exists():
        raise InvalidOptionError(f"--out {folder}: exists already: give a new folder")
    case = case or Case([decision])
    reviewed = {"reviews.json": _json(history(case))} if len(case.events) > 1 else {}
    if entry is None:
        said = {"request.json": _json(decision.instance), "answer.json": _json(decision.answer)}
        _write(folder, {**said, **reviewed}, JUDGED + _told(case, decision))
        return
    if decision.instance is None:
        raise InvalidOptionError(UNKNOWN_INPUTS[decision.kept].format(decision.id))
    for fault in describe_altered_files(decision, entry):
        raise RepositoryError(fault)
    manifest, version = entry.manifest, entry.model_path.parent
    assert manifest is not None  # noqa: S101 (it decided)
    profile = profile_of(manifest).profile
    if profile.never_disclose:
        raise InvalidOptionError(
            f"decision {decision.id}: its profile lists {', '.join(profile.never_disclose)} under "
            "never_disclose, but a receipt shows every feature: check the decision with `rationale replay`"
        )
    contents = {
        "request.json": _json({"instances": [decision.instance]}),
        "answer.json": _json(decision.answer),
        "profile.json": _json(profile.model_dump(mode="json")),
        "graph.json": _json(_graph(entry, manifest, decision.instance)),
        "check.py": (Path(__file__).parent / "check.py").read_bytes(),
        **reviewed,
    }
    used = decision.runtime.get("version", ort.__version__)
    readme = README.format(version=used, graph=entry.graph_digest, files=_FILES)
    _write(folder, contents, readme + _told(case, decision), version)


def _told(case: Case, decision: RecordedDecision) -> str:
    text = describe_case(case, decision)
    return f"\n{textwrap.fill(text, 110)}\n" if text else ""


def _write(folder: Path, contents: Mapping[str, bytes], readme: str, version: Path | None = None) -> None:
    """Write the folder: the files of an entry's version, if there is one, and the contents.

    Args:
        readme: text of README.txt, with _FILES in place of the names of the version's files.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".rationale-", dir=folder.parent) as aside:
            receipt = Path(aside) / "receipt"
            if version is None:
                receipt.mkdir()
            else:
                shutil.copytree(version, receipt)
            files = " ".join(sorted(path.name for path in receipt.iterdir()))
            (receipt / "README.txt").write_text(readme.replace(_FILES, files), encoding="utf-8")
            for name, content in contents.items():
                (receipt / name).write_bytes(content)
            receipt.rename(folder)
    except (OSError, shutil.Error) as error:
        raise InvalidOptionError(f"--out {folder}: cannot be written: {error}") from error


def _graph(entry: Entry, manifest: Manifest, instance: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description of the graph for check.py, with the shapes of this instance."""
    if manifest.base_value is None:
        raise InvalidOptionError(
            f"{entry.name}: its method has no base value, so its attributions have no sum to check"
        )
    inputs = inputs_of(entry, manifest, [instance], Faults())
    by_tensor: dict[str, dict[int, str]] = {}
    for feature, (tensor, index) in manifest.places.items():
        by_tensor.setdefault(tensor, {})[index] = feature
    return {
        "file": entry.model_path.name,
        "libraries": [library.name for library in entry.custom_ops],
        "switches": {} if entry.gate is None else {EXPLAIN: entry.gate},
        "inputs": [
            {
                "name": name,
                "dtype": array.dtype.name,
                "shape": entry.reshapes.get(name, array.shape[1:]),
                "features": [feature for _, feature in sorted(by_tensor.get(name, {0: name}).items())],
            }
            for name, array in inputs.items()
        ],
        "numbers": [score_location(manifest), (manifest.explained_value, 0), (manifest.base_value, 0)],
        "margin": margin_output(manifest),
        "attributions": [
            (item.attributions, item.feature_names or (item.tensor.name,)) for item in manifest.attributed
        ],
    }


def _json(content: Any) -> bytes:
    return orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
