"""Receipts: a folder that onnxruntime and numpy check alone."""

import copy
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pandas as pd
import pytest
from sklearn.compose import make_column_transformer
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from typer.testing import CliRunner

from rationale import DeepShap, TreeShap, compile_model
from rationale.errors import InvalidOptionError, RepositoryError
from rationale_service.cli.main import app
from rationale_service.decisions.audit.ledger import Ledger, open_ledger
from rationale_service.decisions.records.receipt import write_receipt
from rationale_service.decisions.records.replay import Replayer
from rationale_service.settings import Settings
from tests.compiler.models import parsed, rows
from tests.kernels import LIBRARY, declare, network, own_rules
from tests.needs import GERMAN, need_data
from tests.service.decisions.decided import INSTANCES, Decided, decide_all
from tests.service.decisions.reviews.test_cases import case_of

FILES = [
    "README.txt",
    "answer.json",
    "check.py",
    "graph.json",
    "model.onnx",
    "probes.json",
    "profile.json",
    "request.json",
]
# Runs each check.py, and imports nothing but Python's modules, the two libraries and what these need.
BARE = """
import contextlib, importlib.abc, io, json, runpy, sys

class NothingElse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("rationale", "rationale_service", "onnx", "pydantic", "yaml"):
            raise AssertionError(f"check.py imports {name}")

sys.meta_path.insert(0, NothingElse())
for script in sys.argv[1:]:
    told = io.StringIO()
    try:
        with contextlib.redirect_stdout(told):
            runpy.run_path(script, run_name="__main__")
    except SystemExit as ended:
        print(json.dumps([ended.code, told.getvalue()]))
"""


def check(*folders: Path) -> list[tuple[int, str]]:
    """What each check.py exits with and prints."""
    scripts = [str(folder / "check.py") for folder in folders]
    command = [sys.executable, "-I", "-c", BARE, *scripts]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ran.stderr == ""
    lines = [tuple(json.loads(line)) for line in ran.stdout.splitlines()]
    assert len(lines) == len(folders)
    return lines


def numbers_of(answer: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of all its numbers."""
    if isinstance(answer, dict | list):
        for key, value in answer.items() if isinstance(answer, dict) else enumerate(answer):
            yield from numbers_of(value, (*path, key))
    elif isinstance(answer, int | float) and not isinstance(answer, bool):
        yield path


def kinds(decided: Decided) -> list[str]:
    """Ids of decisions, one for each model, outcome and set of codes."""
    collected = {}
    for name, ids in decided.ids.items():
        for decision_id in ids:
            answer = decided.answers[decision_id]
            collected[name, answer["decision"], *sorted(reason["code"] for reason in answer["reasons"])] = (
                decision_id
            )
    return list(collected.values())


def test_every_kind_of_decision_is_checked_without_rationale(
    decided: Decided, store: Ledger, tmp_path: Path
) -> None:
    replayer, ids = Replayer(decided.settings), kinds(decided)
    listed = decided.ids["words"][1]  # its values came as lists
    ids += [] if listed in ids else [listed]
    assert decided.answers[listed]["decision"] == "decline"
    assert len(ids) >= len(INSTANCES) + 4
    for decision_id in ids:
        decision = store.read(decision_id)
        write_receipt(decision, replayer.entry(decision), tmp_path / decision_id)
        assert sorted(path.name for path in (tmp_path / decision_id).iterdir()) == FILES
    for code, lines in check(*(tmp_path / decision_id for decision_id in ids)):
        assert (code, lines.splitlines()[-1]) == (0, "the same decision, by the same reasons"), lines


@pytest.mark.parametrize("name", ["credit", "net"])
def test_no_number_word_or_reason_can_be_another_one(
    decided: Decided, store: Ledger, tmp_path: Path, name: str
) -> None:
    decision_id = max(decided.ids[name], key=lambda decision_id: len(decided.answers[decision_id]["reasons"]))
    decision = store.read(decision_id)
    write_receipt(decision, Replayer(decided.settings).entry(decision), tmp_path / "receipt")
    answer = json.loads((tmp_path / "receipt" / "answer.json").read_text())
    reasons = answer["reasons"]
    altered = [
        {**answer, "decision": "approve"},
        {**answer, "reasons": reasons[:-1]},
        {**answer, "reasons": [{**reasons[0], "code": "R77"}, *reasons[1:]]},
        {**answer, "reasons": reasons[::-1]},
        {**answer, "attributions": dict(list(answer["attributions"].items())[1:])},
        {**answer, "attributions": {**answer["attributions"], "luck": 0.1}},
        *(moved(answer, path) for path in numbers_of(answer)),
    ]
    folders = []
    for i, each in enumerate(altered):
        folders.append(tmp_path / str(i))
        shutil.copytree(tmp_path / "receipt", folders[-1])
        (folders[-1] / "answer.json").write_text(json.dumps(each))
    assert len(altered) > 20
    for each, (code, lines) in zip(altered, check(*folders), strict=True):
        assert code == 1, (each, lines)
        assert "DIFFERENT" in lines


def test_the_graph_s_digest_is_that_of_a_shell(decided: Decided, store: Ledger, tmp_path: Path) -> None:
    decision = store.read(decided.ids["words"][0])
    write_receipt(decision, Replayer(decided.settings).entry(decision), tmp_path / "receipt")
    readme = (tmp_path / "receipt" / "README.txt").read_text()
    command = ["bash", "-c", "sha256sum model.onnx probes.json | sha256sum"]
    shown = subprocess.run(command, cwd=tmp_path / "receipt", capture_output=True, text=True)
    assert decision.runtime["graph"] == shown.stdout.split()[0]
    assert f"onnxruntime=={decision.runtime['version']} numpy" in readme
    for runtime, version in (({"version": "1.2.3"}, "1.2.3"), ({}, onnxruntime.__version__)):
        recorded = replace(decision, runtime={"graph": decision.runtime["graph"], **runtime})
        write_receipt(recorded, Replayer(decided.settings).entry(recorded), tmp_path / version)
        assert f"pip install onnxruntime=={version} numpy" in (tmp_path / version / "README.txt").read_text()
    assert f"{shown.stdout.split()[0]}:\n`sha256sum model.onnx probes.json | sha256sum`" in readme


def test_what_is_never_disclosed_is_in_no_receipt(decided: Decided, store: Ledger, tmp_path: Path) -> None:
    decision = store.read(decided.ids["words"][0])
    entry = Replayer(decided.settings).entry(decision)
    assert entry.manifest is not None
    assert entry.manifest.decision is not None
    profile = entry.manifest.decision.profile.model_copy(update={"never_disclose": ("code",)})
    by_it = entry.manifest.decision.model_copy(update={"profile": profile})
    entry_with_secret = replace(entry, manifest=entry.manifest.model_copy(update={"decision": by_it}))
    with pytest.raises(InvalidOptionError, match="lists code under never_disclose"):
        write_receipt(decision, entry_with_secret, tmp_path / "receipt")
    assert not (tmp_path / "receipt").exists()


def test_a_receipt_is_whole_or_not_there(decided: Decided, store: Ledger, tmp_path: Path) -> None:
    decision = store.read(decided.ids["words"][0])
    entry = Replayer(decided.settings).entry(decision)
    with pytest.raises(InvalidOptionError, match="already"):
        write_receipt(decision, entry, tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidOptionError, match="be written"):
        write_receipt(decision, entry, tmp_path / "file" / "receipt")
    gone = replace(entry, model_path=tmp_path / "gone" / "model.onnx")
    with pytest.raises(InvalidOptionError, match="gone"):
        write_receipt(decision, gone, tmp_path / "receipt")
    with pytest.raises(RepositoryError, match="that decided"):
        write_receipt(decision, replace(entry, graph_digest="0" * 64), tmp_path / "receipt")
    with pytest.raises(InvalidOptionError, match="were erased"):
        write_receipt(replace(decision, instance=None, kept="erased"), entry, tmp_path / "receipt")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_command_line(decided: Decided, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    decision_id = decided.ids["net"][0]
    for out, folder in ((["--out", "new/receipt"], "new/receipt"), ([], f"receipt-{decision_id}")):
        words = ["receipt", decision_id, *out, "--repository", str(decided.settings.repository)]
        run = CliRunner().invoke(app, words)
        assert run.exit_code == 0, run.output
        request = json.loads((tmp_path / folder / "request.json").read_text())
        assert request == {"instances": [INSTANCES["net"][0]]}


def test_a_library_of_kernels_travels_along(tmp_path: Path) -> None:
    profile = {"output": "y", "threshold": 0.0, "adverse": "above"}
    with own_rules():
        declare()
        compile_model(
            network(),
            DeepShap(rows(9, 3)),
            feature_names=["a", "b", "c"],
            decision=profile,
            custom_ops=[LIBRARY],
        ).write(tmp_path / "models", "leaky")
    instances = {"leaky": [dict(zip("abc", row, strict=True)) for row in rows(4, 3, seed=2).tolist()]}
    decided = decide_all(tmp_path / "models", instances, allow_custom_ops=True)
    replayer, store, receipts = Replayer(decided.settings), open_ledger(decided.settings), []
    for decision in store.in_order():
        replayed = replayer.replay(decision)
        assert replayed.differences == replayed.elsewhere == ()
        receipts.append(tmp_path / decision.id)
        write_receipt(decision, replayed.entry, receipts[-1])
        assert (receipts[-1] / LIBRARY.name).is_file()
    store.close()
    for code, lines in check(*receipts):
        assert code == 0, lines


EDGES: dict[str, Any] = {
    "output": "y",
    "output_range": [-10, 100],
    "threshold": 1.0,
    "features": {name: {"reason": name[0]} for name in ("income", "debt", "age", "years")},
    "reasons": {"d": "Debt", "i": "Income", "a": "Age", "y": "Years", "young": "Too young", "cards": "Cards"},
    "knock_outs": [
        {"feature": "age", "below": 18, "reason": "young"},
        {"feature": "cards", "above": 2, "below": 9, "reason": "cards"},
    ],
    "least_share": 0.25,
    "max_reasons": 4,
}


def test_edges_are_decided_as_they_were(tmp_path: Path) -> None:
    """At the threshold, in a tie but for rounding, and where an input has the name of another's feature."""
    graph = "g (float[N, 1] age, float[N, 3] b) => (float[N, 1] y) {"
    graph += " h = Concat <axis = 1> (age, b)  y = MatMul (h, w) }"
    model = parsed(graph, {"w": np.array([[1], [1], [0], [1]], np.float32)})
    method = DeepShap({"age": np.zeros((2, 1)), "b": np.zeros((2, 3))})
    names = {"age": ["years"], "b": ["income", "age", "debt"]}
    kinds = ("above", "below")
    for adverse in kinds:
        compile_model(model, method, feature_names=names, decision={**EDGES, "adverse": adverse}).write(
            tmp_path / "models", adverse
        )
    rows: list[dict[str, Any]] = [
        {"years": 0.25, "income": 0.5, "age": 40, "debt": 0.25},  # at the threshold
        {"years": 0, "income": 2.5, "age": 40, "debt": 2.4999998},  # a tie, where the score is above
        {"years": 0, "income": -0.5, "age": 40, "debt": -0.49999997},  # and below
        {"years": 5, "income": 1, "age": 17, "debt": 0},
        {"age": [5], "b": [1, 17, 0]},
        {"years": 0, "income": 1.5, "age": 18, "debt": 0.5},  # exactly the least share, and no longer young
        {"years": 0.25, "income": 1.5, "age": 18, "debt": 0.5},  # less
        {"years": 0, "income": 2, "age": 40, "debt": 0, "cards": 2},
        {"years": 0, "income": 2, "age": 40, "debt": 0, "cards": 9},
        {"years": 0, "income": 2, "age": 40, "debt": 0, "cards": 3},
    ]
    rows = [{"cards": None, **row} for row in rows]
    decided = decide_all(tmp_path / "models", dict.fromkeys(kinds, rows))
    outcomes = {
        name: [decided.answers[decision_id]["decision"] for decision_id in ids]
        for name, ids in decided.ids.items()
    }
    declined = ["decline"]
    assert outcomes["above"] == ["approve", "decline", "approve", *declined * 7]
    assert outcomes["below"] == ["approve", "approve", *declined * 3, *["approve"] * 4, "decline"]
    codes = [
        [reason["code"] for reason in decided.answers[decision_id]["reasons"]]
        for decision_id in decided.ids["above"]
    ]
    assert codes[5:] == [["i", "d"], ["i"], ["i"], ["i"], ["cards"]]
    tied = [decided.answers[decided.ids[name][i]]["reasons"] for name, i in (("above", 1), ("below", 2))]
    assert [[reason["code"] for reason in reasons if reason["tied"]] for reasons in tied] == [["d"], ["d"]]
    check_receipts(decided.settings, tmp_path)


def check_receipts(settings: Settings, folder: Path) -> None:
    """Write a receipt of each decision, and demand that its own check agrees."""
    replayer, store, receipts = Replayer(settings), open_ledger(settings), []
    for decision in store.in_order():
        receipts.append(folder / decision.id)
        write_receipt(decision, replayer.entry(decision), receipts[-1])
    store.close()
    for code, lines in check(*receipts):
        assert code == 0, lines


def test_of_inquiries_beyond_the_most_reasons_the_largest_alone_is_one(tmp_path: Path) -> None:
    """Wherever they stand among the reasons: the receipt counts as the profile does."""
    graph = "g (float[N, 3] x) => (float[N, 1] y) { y = MatMul (x, w) }"
    names = ["income", "debt", "years"]
    inquiry = {"text": "Inquiries", "inquiry": True}
    profile: dict[str, Any] = {"output": "y", "threshold": 0.5, "adverse": "above", "max_reasons": 1}
    profile |= {"output_range": [-9, 9], "features": {name: {"reason": name[0]} for name in names}}
    profile |= {"reasons": {"i": "Income", "d": inquiry, "y": inquiry}}
    model = parsed(graph, {"w": np.ones((3, 1), np.float32)})
    compiled = compile_model(model, DeepShap(np.zeros((2, 3))), feature_names=names, decision=profile)
    compiled.write(tmp_path / "models", "m")
    amounts = [(3, 2, 1), (3, 1, 2), (2, 3, 1), (1, 3, 2), (3, 2, 0), (3, 0, 0), (0, 3, 2)]
    due = [["i", "d"], ["i", "y"], ["d", "y"], ["d", "y"], ["i", "d"], ["i"], ["d", "y"]]
    rows = [dict(zip(names, map(float, row), strict=True)) for row in amounts]
    decided = decide_all(tmp_path / "models", {"m": rows})
    answers = [decided.answers[decision_id] for decision_id in decided.ids["m"]]
    assert [[reason["code"] for reason in answer["reasons"]] for answer in answers] == due
    check_receipts(decided.settings, tmp_path)


@pytest.mark.parametrize(
    ("names", "kinds"),
    [
        (["decline"], None),
        (["decline", "contest"], ["decision", "contest"]),
        (["refer", "judged"], ["decision", "judgment"]),
        (["decline", "contest", "judged"], ["decision", "contest", "judgment"]),
    ],
    ids=str,
)
def test_a_receipt_tells_of_all_that_happened_in_a_case(
    tmp_path: Path, names: list[str], kinds: list[str] | None
) -> None:
    case = case_of(*names)
    write_receipt(case.standing, None, tmp_path / "receipt", case)
    history = tmp_path / "receipt" / "reviews.json"
    told = [event["kind"] for event in json.loads(history.read_text())] if history.exists() else None
    assert told == kinds


@pytest.mark.full
def test_a_pipeline_on_german_credit_data(tmp_path: Path) -> None:
    """Twenty inputs of words and numbers; all rows of a slice replay bit for bit, declines check alone."""
    table = pd.read_csv(need_data(GERMAN), sep="\t", header=None)
    x, bad = table.iloc[:, :-1].set_axis([f"x{i}" for i in range(20)], axis=1), table.iloc[:, -1] == 2
    words = [name for name in x if not pd.api.types.is_numeric_dtype(x[name])]
    x = x.astype({name: np.float32 for name in x if name not in words})
    coded = OneHotEncoder(handle_unknown="ignore")
    columns = make_column_transformer((coded, words), remainder="passthrough")
    trees = GradientBoostingClassifier(n_estimators=20, max_depth=3, random_state=0)
    model = make_pipeline(columns, trees).fit(x, bad)
    profile = {
        "output": "probabilities[1]",
        "threshold": 0.35,
        "adverse": "above",
        "groups": {"loan": {"members": ["x1", "x4"], "title": "Amount and term"}},
    }
    compile_model(model, TreeShap(references=x[:40]), decision=profile).write(tmp_path / "models", "german")
    decided = decide_all(tmp_path / "models", {"german": x[40:100].to_dict("records")})
    replayer, store = Replayer(decided.settings), open_ledger(decided.settings)
    receipts = []
    for decision in store.in_order():
        replayed = replayer.replay(decision)
        assert replayed.differences == replayed.elsewhere == ()
        if decision.answer["decision"] == "decline":
            receipts.append(tmp_path / decision.id)
            write_receipt(decision, replayed.entry, receipts[-1])
    store.close()
    assert 10 < len(receipts) < 60
    assert all(code == 0 for code, _ in check(*receipts))


def moved(answer: dict[str, Any], path: tuple[Any, ...]) -> dict[str, Any]:
    """With one number that is another one."""
    changed = copy.deepcopy(answer)
    inner: Any = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] += 0.01 * max(1, abs(inner[path[-1]]))
    return changed
