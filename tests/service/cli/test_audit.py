"""`rationale audit`: what the commands print, their exit statuses, and what they leave behind."""

import csv
import json
from pathlib import Path
from subprocess import run

import pandas as pd
import pyarrow.parquet as pq
import pytest
from sqlalchemy import text
from typer.testing import CliRunner, Result

from rationale_service.cli.main import app
from rationale_service.decisions.audit.rows import InputCodec
from rationale_service.decisions.audit.stores.sql import SqlStore
from tests.needs import need
from tests.service.decisions.audit.conftest import decision, ledger_of

ENVIRONMENT = ("RATIONALE_AUDIT", "RATIONALE_AUDIT_INPUTS", "RATIONALE_AUDIT_KEY_FILE")


@pytest.fixture
def trail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SqlStore:
    """Two sealed decisions of this month, and an old one before them; the environment names it."""
    file, key = tmp_path / "audit.sqlite3", tmp_path / "key"
    key.write_text("k" * 32)
    for name, value in zip(ENVIRONMENT, (f"sqlite:///{file}", "sealed", str(key)), strict=True):
        monkeypatch.setenv(name, value)
    database = SqlStore(file)
    old = decision(1, time="2020-01-01T00:00:00.000000+00:00")
    ledger_of(database, InputCodec("sealed", key)).append([[old], [decision(2)], [decision(3)]])
    database.close()
    return database


def audit(*arguments: str | Path, status: int = 0) -> Result:
    result = CliRunner().invoke(app, ["audit", *map(str, arguments)])
    assert result.exit_code == status, result.output
    return result


@pytest.fixture
def signing(tmp_path: Path) -> tuple[Path, Path]:
    """A private key and its public one, as the docs make them."""
    private, public = tmp_path / "private", tmp_path / "public"
    for arguments in (
        ["genpkey", "-algorithm", "ed25519", "-out", str(private)],
        ["pkey", "-in", str(private), "-pubout", "-out", str(public)],
    ):
        run([need("OpenSSL"), *arguments], check=True)
    return private, public


def test_verify_and_heads(trail: SqlStore, tmp_path: Path, signing: tuple[Path, Path]) -> None:
    (private, public), heads = signing, tmp_path / "heads.json"
    heads.write_text(audit("heads", "--key", private).stdout)
    assert [head["sequence"] for head in json.loads(heads.read_text())["heads"]] == [3]
    signed = ("verify", "--heads", heads, "--public-key", public)
    assert audit(*signed).stdout == "3 decisions, none removed or altered\n"
    assert "--heads needs --public-key" in audit("verify", "--heads", heads, status=2).stderr

    with trail.writing() as connection:
        connection.execute(text("DELETE FROM audit_decisions WHERE sequence = 3"))
    trail.close()
    assert audit(*signed, status=1).stdout.splitlines()[1] == "1 fault in 2 decisions"
    with trail.writing() as connection:
        connection.execute(text("UPDATE audit_decisions SET caller = 'x' WHERE sequence = 2"))
    trail.close()
    output = audit(*signed, status=1).stdout.splitlines()
    assert ["row 2: was altered" in output[0], "row 3: is gone" in output[1]] == [True, True]
    assert output[2] == "2 faults in 2 decisions"


@pytest.mark.usefixtures("trail")
def test_prune_erase_and_export(tmp_path: Path, signing: tuple[Path, Path]) -> None:
    private, public = signing
    assert audit("prune").stdout == "1 decision deleted\n"
    erased = decision(2).id
    assert "Missing option '--key'" in audit("erase", erased, status=2).stderr
    assert "private key" in audit("erase", erased, "--key", public, status=2).stderr
    erase = ("erase", erased, "--key", private)
    assert audit(*erase).stdout == f"the inputs of decision {erased} are erased\n"
    assert "erased already" in audit(*erase, status=2).stderr
    message = "2 decisions, none removed or altered; 1 pruned before, as checkpoints say; inputs of 1 erased"
    assert audit("verify", "--public-key", public).stdout == f"{message}\n"
    unchecked = audit("verify").stdout
    assert unchecked.startswith(message)
    assert "--public-key" in unchecked
    file = tmp_path / "decisions.parquet"
    assert audit("export", file, "--inputs").stdout == f"{file}: 2 decisions\n"
    rows = pq.read_table(file).to_pylist()
    assert [(row["id"], row["kept"]) for row in rows] == [(erased, "erased"), (decision(3).id, "sealed")]
    assert rows[0]["instance"] is None
    assert json.loads(rows[1]["instance"]) == decision(3).instance
    assert json.loads(rows[1]["answer"]) == decision(3).answer
    assert rows[1]["codes"] == ["R1", "R2"]
    audit("export", file, "--until", "2026-11-23T10:00:03")
    rows = pq.read_table(file).to_pylist()
    assert [(row["id"], row["instance"]) for row in rows] == [(erased, None)]
    for name, message in (
        ("none/a.csv", "cannot be written"),
        ("a", "must end in .parquet, .csv, .jsonl, .xlsx"),
    ):
        assert message in " ".join(audit("export", tmp_path / name, status=2).stderr.split())
    assert {path.name for path in tmp_path.iterdir()} >= {file.name}
    assert not list(tmp_path.glob(".*"))


@pytest.mark.usefixtures("trail")
def test_an_export_is_of_the_kind_that_its_name_says(tmp_path: Path) -> None:
    table, lines, book = (tmp_path / f"decisions.{kind}" for kind in ("CSV", "jsonl", "xlsx"))
    for file in (table, lines, book):
        assert audit("export", file, "--inputs").stdout == f"{file}: 3 decisions\n"
    with table.open() as opened:
        rows = list(csv.DictReader(opened))
    texts = {name: str for name in rows[0] if name not in ("latency_ms", "score")}
    for row, cells in zip(
        rows, pd.read_excel(book, dtype=texts, na_filter=False).to_dict("records"), strict=True
    ):
        assert {name: cells[name] for name in texts} == {name: row[name] for name in texts}
        assert cells["score"] == pytest.approx(float(row["score"]), rel=1e-15)
    for i, (row, line) in enumerate(zip(rows, lines.read_text().splitlines(), strict=True), 1):
        expected, actual = decision(i), json.loads(line)
        assert (
            (row["id"], float(row["score"]))
            == (actual["id"], actual["score"])
            == (expected.id, expected.answer["score"])
        )
        assert (row["codes"], actual["codes"]) == ("R1; R2", ["R1", "R2"])
        assert json.loads(row["answer"]) == actual["answer"] == expected.answer
        assert json.loads(row["instance"]) == actual["instance"] == expected.instance


def test_no_trail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = audit("verify", "--repository", tmp_path / "models", status=2).stderr
    assert "no audit trail" in output
    assert "--repository or --config" in output
    monkeypatch.setenv("RATIONALE_AUDIT", "off")
    assert "RATIONALE_AUDIT is off" in audit("prune", status=2).stderr
    monkeypatch.setenv("RATIONALE_AUDIT", "mysql://user:hunter2@host/name")
    output = audit("prune", status=2).stderr
    assert "URL" in output
    assert "hunter2" not in output
    assert list(tmp_path.iterdir()) == []
