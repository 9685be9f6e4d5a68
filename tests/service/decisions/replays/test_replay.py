"""Old decisions computed again: the same bits, or what differs and why."""

import json
import shutil
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from typer.testing import CliRunner

from rationale.errors import InvalidOptionError, RepositoryError
from rationale.schema.manifest import FILE_NAME
from rationale_service.cli.main import app
from rationale_service.decisions.audit.ledger import Ledger
from rationale_service.decisions.audit.trail import RecordedDecision
from rationale_service.decisions.records.replay import Replayer, compare
from tests.service.decisions.decided import INSTANCES, Decided, decide_all


@pytest.fixture
def declined(decided: Decided, store: Ledger) -> RecordedDecision:
    ids = decided.ids["credit"]
    return store.read(
        next(decision_id for decision_id in ids if decided.answers[decision_id]["decision"] == "decline")
    )


@pytest.fixture
def copied(decided: Decided, tmp_path: Path) -> Path:
    """Another repository, with the example's entry under another name."""
    shutil.copytree(Path(decided.settings.repository) / "credit_explain", tmp_path / "kept" / "old")
    config = tmp_path / "kept" / "old" / "config.pbtxt"
    config.write_text(config.read_text().replace('name: "credit_explain"', 'name: "old"'))
    return tmp_path / "kept"


@pytest.mark.parametrize("name", INSTANCES)
def test_every_decision_is_repeated_bit_for_bit(decided: Decided, store: Ledger, name: str) -> None:
    replayer = Replayer(decided.settings)
    for decision_id in decided.ids[name]:
        replayed = replayer.replay(store.read(decision_id))
        assert replayed.differences == replayed.elsewhere == replayed.passed_over == ()
        assert replayed.entry.model in (name, f"{name}_explain")


def test_the_decisions_of_this_module_are_of_every_kind(decided: Decided) -> None:
    kinds = {answer["decision"] for answer in decided.answers.values()}
    reasons = [reason for answer in decided.answers.values() for reason in answer["reasons"]]
    assert kinds == {"approve", "refer", "decline"}
    assert {"R09", "means"} & {reason["code"] for reason in reasons} == {"R09"}
    assert any(len(reason["features"]) > 1 for reason in reasons)


def test_one_bit_in_the_record_shows(decided: Decided, declined: RecordedDecision) -> None:
    bits = struct.unpack("<q", struct.pack("<d", declined.answer["score"]))[0]
    score = struct.unpack("<d", struct.pack("<q", bits + 1))[0]
    altered = replace(declined, answer={**declined.answer, "score": score})
    (difference,) = Replayer(decided.settings).replay(altered).differences
    assert difference == f"score: {score} was answered, {declined.answer['score']} is computed"


def test_on_another_runtime_numbers_are_equal_within_the_tolerance(
    decided: Decided, declined: RecordedDecision
) -> None:
    answer = dict(declined.answer)
    reasons = [{**reason, "tied": True} for reason in answer["reasons"]]
    near = {**answer, "score": answer["score"] * (1 + 5e-5), "reasons": reasons[::-1]}
    runtime = {**declined.runtime, "version": "1.0", "processor": "another"}
    replayed = Replayer(decided.settings).replay(replace(declined, answer=near, runtime=runtime))
    assert replayed.differences == ()
    assert [each.partition(":")[0] for each in replayed.elsewhere] == ["version", "processor"]
    far = {**answer, "score": answer["score"] * (1 + 2e-4), "decision": "approve"}
    differences = (
        Replayer(decided.settings).replay(replace(declined, answer=far, runtime=runtime)).differences
    )
    assert sorted(each.partition(":")[0] for each in differences) == ["decision", "score"]
    assert Replayer(decided.settings).replay(replace(declined, runtime={})).elsewhere


@pytest.mark.parametrize(
    ("name", "then"),
    [
        ("backend", "triton"),
        ("version", "1.0"),
        ("devices", ["cuda:0"]),
        ("processor", "another"),
        ("kernels", "0.0.1"),  # which are recorded where they were taken
    ],
)
def test_whatever_of_the_runtime_was_another_bits_may_differ(
    decided: Decided, declined: RecordedDecision, name: str, then: Any
) -> None:
    runtime = {**declined.runtime, name: then}
    assert Replayer(decided.settings).replay(declined).elsewhere == ()
    replayed = Replayer(decided.settings).replay(replace(declined, runtime=runtime))
    assert [each.partition(":")[0] for each in replayed.elsewhere] == [name]


def test_the_entry_is_found_by_its_digests_whatever_its_name(
    decided: Decided, declined: RecordedDecision, copied: Path
) -> None:
    replayed = Replayer(decided.settings, copied).replay(declined)
    assert replayed.entry is not None
    assert (replayed.entry.name, replayed.differences, replayed.elsewhere) == ("old", (), ())


@pytest.mark.parametrize("name", ["another", "same"])  # before `old` and after it
def test_of_equal_entries_that_of_the_model_replays(
    decided: Decided, declined: RecordedDecision, copied: Path, name: str
) -> None:
    """Whichever is called first: both have its digests and its graph."""
    shutil.copytree(copied / "old", copied / name)
    config = copied / name / "config.pbtxt"
    config.write_text(config.read_text().replace('name: "old"', f'name: "{name}"'))
    (file,) = (copied / name).rglob(FILE_NAME)
    file.write_text(json.dumps({**json.loads(file.read_text()), "model": "another"}))
    replayer = Replayer(decided.settings, copied)
    assert replayer.entry(declined).name == "old"
    assert replayer.entry(replace(declined, model="another")).name == name


@pytest.mark.parametrize("name", ["model", "references"])
def test_another_digest_in_the_record_is_told(
    decided: Decided, declined: RecordedDecision, name: str
) -> None:
    digests = {**declined.answer["digests"], name: "0" * 64}
    altered = replace(declined, answer={**declined.answer, "digests": digests})
    (difference,) = Replayer(decided.settings).replay(altered).differences
    assert f"the digest of its {name} was another" in difference


def test_as_many_threads_as_then_replay_it(decided: Decided, declined: RecordedDecision) -> None:
    for threads in (1, declined.runtime["threads"] + 1):
        runtime = {**declined.runtime, "threads": threads}
        replayed = Replayer(decided.settings).replay(replace(declined, runtime=runtime))
        assert (replayed.differences, replayed.elsewhere) == ((), ())


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_as_many_threads_as_then_whatever_the_instances(
    decided: Decided, declined: RecordedDecision, copied: Path, threads: int
) -> None:
    config = copied / "old" / "config.pbtxt"
    config.write_text(config.read_text() + "instance_group [{ count: 2 kind: KIND_CPU }]\n")
    then = replace(declined, runtime={**declined.runtime, "threads": threads})
    replayed = Replayer(decided.settings, copied).replay(then)
    assert replayed.entry.instances == 3  # and the one that it had
    assert (replayed.differences, replayed.elsewhere) == ((), ())


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ({"score": 0.5 * (1 + 0.9e-4)}, []),
        ({"score": 0.5 * (1 + 1.2e-4)}, ["score"]),
        ({"threshold": 0.5 * (1 + 1.2e-4)}, ["threshold"]),
        ({"explained_value": 100 + 0.009}, []),
        ({"explained_value": 100 + 0.011}, ["explained_value"]),
        ({"attributions": {"a": 100.009, "b": 0.009}}, []),
        ({"attributions": {"a": 100.0, "b": 0.011}}, ["attributions.b"]),
        ({"share": 0.75 + 0.9e-4}, []),
        ({"share": 0.75 + 1.1e-4}, ["reasons.A.share"]),
        ({"attribution": 100.009}, []),
        ({"attribution": 100.011}, ["reasons.A.attribution"]),
        ({"value": 7 + 1e-9}, ["reasons.A.value"]),
    ],
)
def test_each_number_is_compared_by_its_own_scale(change: dict[str, Any], differs: list[str]) -> None:
    """Of an attribution, the explained and the base value: the largest of these; of a share: 1."""
    reason = {"code": "A", "text": "A", "share": 0.75, "attribution": 100.0, "value": 7}
    answer = {
        "decision": "decline",
        "score": 0.5,
        "threshold": 0.5,
        "explained_value": 100.0,
        "base_value": 0.0,
        "attributions": {"a": 100.0, "b": 0.0},
    }
    then = {**answer, **{name: value for name, value in change.items() if name in answer}}
    reasons = [{**reason, **{name: value for name, value in change.items() if name in reason}}]
    differences = compare({**then, "reasons": reasons}, {**answer, "reasons": [reason]}, exact=False)
    assert [each.partition(":")[0] for each in differences] == differs


@pytest.mark.parametrize(
    ("score", "threshold", "then", "is_same"),
    [
        (1e-3, 0.5, 1e-3 + 0.9 * 0.5e-4, True),  # by the larger of both
        (1e-3, 0.5, 1e-3 + 1.1 * 0.5e-4, False),
        (0.5, 1e-3, 0.5 + 0.9 * 0.5e-4, True),
        (0.5, 1e-3, 0.5 + 1.1 * 0.5e-4, False),
        (-600, -700, -600 - 0.069, True),
        (-600, -700, -600 - 0.071, False),
    ],
)
def test_a_score_is_compared_by_the_larger_of_itself_and_the_threshold(
    score: float, threshold: float, then: float, is_same: bool
) -> None:
    now = {"score": score, "threshold": threshold, "explained_value": 0, "base_value": 0, "attributions": {}}
    now |= {"reasons": []}
    assert (compare({**now, "score": then}, now, exact=False) == []) is is_same


def test_an_altered_graph_under_the_old_manifest_is_told(
    decided: Decided, declined: RecordedDecision, copied: Path
) -> None:
    graph = copied / "old" / "1" / "model.onnx"
    graph.write_bytes(graph.read_bytes() + b"\x32\x00")  # an empty doc_string: no number is another one
    (difference,) = Replayer(decided.settings, copied).replay(declined).differences
    assert "decided" in difference
    now = Replayer(decided.settings, copied).entry(declined).graph_digest or ""
    assert f"is {now[:12]}…, and was {declined.runtime['graph'][:12]}…" in difference
    for name in ("a", "z"):  # whatever the order of names, the one with the graph
        config = Path(decided.settings.repository) / "credit_explain" / "config.pbtxt"
        shutil.copytree(config.parent, copied / name)
        (copied / name / "config.pbtxt").write_text(config.read_text().replace("credit_explain", name))
        assert Replayer(decided.settings, copied).entry(declined).name == name
        manifest = json.loads((copied / name / FILE_NAME).read_text())
        (copied / name / FILE_NAME).write_text(json.dumps({**manifest, "model": "other"}))  # its files decide
        assert Replayer(decided.settings, copied).entry(declined).name == name
        shutil.rmtree(copied / name)


@pytest.mark.parametrize("member", ["threshold", "explanation"])
def test_an_entry_with_another_profile_or_digest_decided_nothing(
    decided: Decided, declined: RecordedDecision, copied: Path, member: str
) -> None:
    """A threshold that was changed by hand too, with the profile's digest left as it was."""
    file = copied / "old" / FILE_NAME
    manifest = json.loads(file.read_text())
    if member == "threshold":
        manifest["decision"]["profile"]["threshold"] = 0.9
    else:
        manifest["digests"]["explanation"] = "0" * 64
    file.write_text(json.dumps(manifest))
    with pytest.raises(RepositoryError, match=r"explainer .* --entries"):
        Replayer(decided.settings, copied).replay(declined)


def test_what_cannot_be_replayed_is_told(
    decided: Decided, declined: RecordedDecision, tmp_path: Path
) -> None:
    replayer = Replayer(decided.settings)
    form: Literal["hashed", "erased"]
    for form, message in (("hashed", "--instance FILE"), ("erased", "were erased")):
        with pytest.raises(InvalidOptionError, match=message):
            replayer.replay(replace(declined, instance=None, kept=form))
    with pytest.raises(RepositoryError, match="not a folder"):
        Replayer(decided.settings, tmp_path / "nowhere").replay(declined)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / FILE_NAME).write_text("{}")
    with pytest.raises(RepositoryError, match="no entry"):
        Replayer(decided.settings, tmp_path).replay(declined)
    instance = {**(declined.instance or {}), "income": "much"}
    (difference,) = replayer.replay(replace(declined, instance=instance)).differences
    assert difference.startswith("nothing is decided now")


def test_what_only_one_side_has_is_passed_over(declined: RecordedDecision, decided: Decided) -> None:
    answer = {**declined.answer, "survival": {"draws": 0.9}}
    replayed = Replayer(decided.settings).replay(replace(declined, answer=answer))
    assert (replayed.differences, replayed.passed_over) == ((), ("survival",))
    fewer = {**answer, "attributions": {}}
    assert compare(fewer, dict(declined.answer), exact=True)
    assert compare({**answer, "reasons": answer["reasons"][1:]}, dict(declined.answer), exact=False)
    then, now = (
        {**answer, "standard_errors": errors} for errors in ({"income": 0.1, "debt": 0.2}, {"income": 0.1})
    )
    for exact in (True, False):
        assert compare(then, now, exact=exact) == ["standard_errors: income, debt then, income now"]
    (difference,) = compare({**answer, "score": None}, dict(declined.answer), exact=False)
    assert difference == f"score: None was answered, {answer['score']} is computed"


def test_the_command_line(decided: Decided, declined: RecordedDecision, tmp_path: Path) -> None:
    def run(*words: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["replay", *words, "--repository", str(decided.settings.repository)])
        return result.exit_code, result.output

    code, output = run(declined.id)
    assert (code, output.splitlines()[-1]) == (0, "the same decision on the same runtime: equal bit for bit")
    file = tmp_path / "instance.json"
    file.write_text(json.dumps({"instances": [declined.instance]}))
    assert run(declined.id, "--instance", str(file))[0] == 0
    file.write_text(json.dumps({**(declined.instance or {}), "income": 1}))
    assert run(declined.id, "--instance", str(file))[0] == 2
    code, output = run("--since", "2000")
    assert (code, output) == (0, f"{len(decided.answers)} equal bit for bit\n")
    assert run("--since", "2000", "--until", "2001") == (0, "no decisions\n")
    for wrong in ([], ["x", "--since", "2000"], ["x", "--until", "2000"], ["nothing"]):
        assert run(*wrong)[0] == 2
    empty = tmp_path / "empty"
    empty.mkdir()
    code, output = run("--since", "2000", "--entries", str(empty))
    assert (code, output.splitlines()[-1]) == (1, f"{len(decided.answers)} not replayed")


def test_hashed_inputs_are_asked_for_and_compared(decided: Decided, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("k" * 40)
    repository = tmp_path / "models"
    for name in ("credit", "credit_explain"):
        shutil.copytree(Path(decided.settings.repository) / name, repository / name)
    (instance,) = INSTANCES["credit"][1:2]
    hashed = decide_all(repository, {"credit": [instance]}, audit_inputs="hashed", audit_key_file=key)
    ((decision_id,),) = hashed.ids.values()
    settings = tmp_path / "settings.toml"
    settings.write_text(f'audit_inputs = "hashed"\naudit_key_file = "{key}"\nrepository = "{repository}"\n')
    file = tmp_path / "instance.json"

    def run(*words: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["replay", decision_id, "--config", str(settings), *words])
        return result.exit_code, result.output

    code, output = run()
    assert (code, "--instance FILE" in output) == (2, True)
    for content, status in ((instance, 0), ({**instance, "income": 1}, 2), ([instance], 2)):
        file.write_text(json.dumps(content))
        assert run("--instance", str(file))[0] == status
    file.write_text("{")
    assert run("--instance", str(file))[0] == 2
