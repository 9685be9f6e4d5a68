"""`rationale notice`: the statement of a decision that stands in the audit trail."""

import json
from pathlib import Path

from typer.testing import CliRunner

from rationale_service.cli.main import app
from tests.service.decisions.decided import Decided

LENDER = """
creditor: {name: A Bank, address: 1 High Street}
agency: {name: An Agency, address: 3 Side Street}
application: a loan
consumer_report: false
"""


def test_a_notice_is_printed_or_written_whole(decided: Decided, tmp_path: Path) -> None:
    lender, out = tmp_path / "lender.yaml", tmp_path / "notice.txt"
    lender.write_text(LENDER)
    applicant = ["--set", "applicant.name=Jo Doe", "--set", "applicant.address=2 Low Street"]

    def run(decision_id: str, *words: str) -> tuple[int, str, str]:
        place = ["--repository", str(decided.settings.repository)]
        result = CliRunner().invoke(app, ["notice", decision_id, "--variables", str(lender), *place, *words])
        return result.exit_code, result.stdout, result.stderr

    def of(name: str, decision: str) -> str:
        return next(
            decision_id
            for decision_id in decided.ids[name]
            if decided.answers[decision_id]["decision"] == decision
        )

    declined = of("credit", "decline")
    code, output, warned = run(declined, *applicant)
    assert code == 0, warned
    for reason in decided.answers[declined]["reasons"]:
        assert f"- {reason['text']}\n" in output
    assert "title" in warned  # its profile has no texts
    assert run(declined, *applicant, "--out", str(out))[0] == 0
    assert out.read_text() == output

    code, _, message = run(declined, "--out", str(tmp_path / "other.txt"))
    assert (code, "applicant.name, applicant.address" in message) == (2, True)
    assert not (tmp_path / "other.txt").exists()
    assert run(of("credit", "approve"), *applicant)[0] == 2
    assert run("nothing", *applicant)[0] == 2
    assert run(declined, *applicant, "--out", str(tmp_path / "no" / "folder.txt"))[0] == 2

    referred = of("net", "refer")
    assert run(referred, *applicant)[0] == 2
    lender.write_text(json.dumps({"judgment": ["Short employment"], "application": "x", "agency": {}}))
    code, _, message = run(referred, *applicant, "--person-declined")
    assert (code, "variables are missing: creditor.name" in message) == (2, True)
    assert "--set NAME=VALUE" in message
    lender.write_text(f"{LENDER}judgment: [Short employment]\n")
    code, output, _ = run(referred, *applicant, "--person-declined")
    assert (code, "- Short employment\n" in output) == (0, True)
