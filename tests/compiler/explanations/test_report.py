"""`rationale explain --html`: what the page holds, what it leaves out, and that it is one file by itself."""

import base64
import hashlib
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from typer.testing import CliRunner, Result

from rationale import Compiled, DeepShap, Explanation, Lrp, compile_model
from rationale.portfolios import report
from rationale.portfolios.explain import explained_batches
from rationale_service.cli.main import app
from tests.compiler.models import FEATURES, mlp, parsed, rows
from tests.compiler.pictures.pages import Page

CREDIT = Path(__file__).parents[3] / "examples" / "credit"
HOSTILE = ["$x^2$", "<script>alert(1)</script>", "<b>&", "{}", "金額"]


@pytest.fixture(scope="module")
def entries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with `table`, `text` and `credit`, which decides."""
    folder = tmp_path_factory.mktemp("report")
    table = compile_model(mlp(), DeepShap(rows(4, FEATURES)), targets=[0], feature_names=HOSTILE)
    table.write(folder, "table")
    text = parsed(
        """g (int64[N, 6] ids) => (float[N, 2] y) { e = Gather (table, ids) h = Tanh (e)
          p = ReduceMean <keepdims = 0> (h, one) y = MatMul (p, w) }""",
        {"table": rows(20, 3), "w": rows(3, 2, seed=1), "one": np.array([1])},
    )
    compile_model(text, Lrp(), targets=[1]).write(folder, "text")
    near = pd.read_csv(CREDIT / "near_threshold.csv")
    decides = compile_model(CREDIT / "credit.onnx", DeepShap(near), decision=CREDIT / "decision.yaml")
    decides.write(folder, "credit")
    return folder


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", rows(30, FEATURES, seed=9))
    np.save("ids.npy", np.random.default_rng(0).integers(0, 20, (3, 6)))
    Path("vocab.txt").write_text("\n".join(f"<w{i}>" for i in range(20)))
    return tmp_path


def call(entries: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["explain", *arguments, "--repository", str(entries), "--html", "r.html"])


def read() -> Page:
    return Page(Path("r.html").read_text(encoding="utf-8"))


def test_rows_one_by_one_and_an_overview_of_all(entries: Path) -> None:
    result = call(entries, "table", "--input", "x.npy", "--rows", "4", "--top", "3")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("wrote r.html: 30 rows; the first 4 one by one\nRow 1, target 0: ")
    actual = read()
    assert actual.of("h1")[0].text == "Explanations by table"
    assert [seen.text for seen in actual.of("h2")] == [f"Row {i}" for i in range(1, 5)]
    captions = [seen.text for seen in actual.of("figcaption")]
    assert captions[0] == "y[0]: mean |attribution| over 30 rows, in percentage points"
    assert captions[1].startswith("y[0]: attributions a dot for each of 30 rows, in percentage points;")
    assert len(captions) == 2 + 4
    assert actual.of("td")[0].text == "30 of x.npy; the first 4 one by one"
    assert [name for name, _ in actual.rows()][3] == "2 others together"
    assert not actual.of("script")


def test_rows_have_their_ids_and_features_their_titles(entries: Path) -> None:
    applicants = pd.read_csv(CREDIT / "references.csv").head(2)
    applicants.assign(loan=["L 7", "<b>"]).to_csv("x.csv", index=False)
    result = call(entries, "credit", "--input", "x.csv", "--keep", "loan")
    assert result.exit_code == 0, result.output
    actual = read()
    assert [seen.text for seen in actual.of("h2")] == ["Row 1, loan L 7", "Row 2, loan <b>"]
    captions = [seen.text for seen in actual.of("figcaption")]
    assert [text.partition(",")[0] for text in captions[-2:]] == ["row 1", "row 2"]
    assert any(name.startswith("Late payments in two years = ") for name, _ in actual.rows())


def test_the_overview_is_of_what_it_says(entries: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "MOST_SUMMED", 20)
    monkeypatch.setattr(report, "MOST_ROWS", 5)
    result = call(entries, "table", "--input", "x.npy", "--rows", "all")
    assert "30 rows; the first 5 one by one; the overview is of the first 20\n" in result.stdout
    actual = read()
    assert len(actual.of("h2")) == 5
    assert actual.of("figcaption")[0].text.endswith("over 20 rows, in percentage points")


def test_rows_are_numbered_through_all_batches_in_pages_and_pictures(
    entries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def in_threes(compiled: Compiled, *arguments: Any) -> Iterator[Explanation]:
        measured = compiled.manifest.measured.model_copy(update={"max_batch": 3})
        manifest = compiled.manifest.model_copy(update={"measured": measured})
        return explained_batches(replace(compiled, manifest=manifest), *arguments)

    monkeypatch.setattr(report, "explained_batches", in_threes)
    assert call(entries, "table", "--input", "x.npy", "--rows", "8").exit_code == 0
    numbers = range(1, 9)
    actual = read()
    assert [seen.text for seen in actual.of("h2")] == [f"Row {i}" for i in numbers]
    captions = [seen.text.partition(",")[0] for seen in actual.of("figcaption")]
    assert captions[2:] == [f"row {i}" for i in numbers]
    report.draw_file(entries, "table", Path("x.npy"), Path("r.svg"), 8, 2, None)
    drawn = re.findall(r">row (\d+),", Path("r.svg").read_text(encoding="utf-8"))
    assert [int(number) for number in drawn] == [*numbers]


def test_no_rows_one_by_one(entries: Path) -> None:
    assert call(entries, "table", "--input", "x.npy", "--rows", "0").exit_code == 0
    assert len(read().of("figure")) == 2


def test_it_is_the_same_file_again_and_a_page_by_itself(entries: Path) -> None:
    assert call(entries, "table", "--input", "x.npy").exit_code == 0
    first_page = Path("r.html").read_bytes()
    assert call(entries, "table", "--input", "x.npy").exit_code == 0
    assert Path("r.html").read_bytes() == first_page
    actual = read()
    (policy,) = (
        seen.attributes["content"]
        for seen in actual.of("meta")
        if seen.attributes.get("http-equiv") == "Content-Security-Policy"
    )
    (style,) = actual.of("style")
    digest = base64.b64encode(hashlib.sha256(style.text.encode()).digest()).decode()
    assert policy == (
        f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    )
    assert all("style" not in seen.attributes for seen in actual.elements)
    assert not re.search(rb"(src|href)=\"(?!data:)", first_page)


def test_tokens_are_words(entries: Path) -> None:
    result = call(entries, "text", "--input", "ids.npy", "--tokenizer", "vocab.txt", "--rows", "2")
    assert result.exit_code == 0, result.output
    words = [word for seen in read().of("p", "tokens") for word in seen.text.split()]
    assert words == [f"<w{i}>" for i in np.load("ids.npy")[:2].reshape(-1)]


# -- decisions -----------------------------------------------------------------------------------------


def test_a_decision_with_its_reasons_stands_over_its_row(entries: Path) -> None:
    result = call(entries, "credit", "--input", str(CREDIT / "applicants.csv"))
    assert result.exit_code == 0, result.output
    actual = read()
    message = [seen.text for seen in actual.of("div", "decision")]
    assert [text.split(":")[0] for text in message] == ["Approve", "Decline", "Decline", "Refer"]
    reasons = [seen.text for seen in actual.of("li") if "ol" in seen.inside]
    assert reasons[0] == "R05 Delinquent credit obligations"
    assert len(reasons) == 4 + 3 + 4


def test_what_needs_more_than_the_model_takes_is_not_decided(tmp_path: Path) -> None:
    profile = yaml.safe_load((CREDIT / "decision.yaml").read_text())
    profile["knock_outs"] = [{"feature": "age", "below": 18, "reason": "R20"}]
    profile["reasons"]["R20"] = "Applicant is under age"
    near = pd.read_csv(CREDIT / "near_threshold.csv")
    compiled = compile_model(CREDIT / "credit.onnx", DeepShap(near), decision=profile)
    compiled.write(tmp_path, "credit")
    assert call(tmp_path, "credit", "--input", str(CREDIT / "applicants.csv")).exit_code == 0
    actual = read()
    assert not actual.of("div", "decision")
    assert any("needs age" in seen.text for seen in actual.of("p", "note"))


def test_what_the_profile_does_not_take_is_not_decided(tmp_path: Path) -> None:
    profile = yaml.safe_load((CREDIT / "decision.yaml").read_text())
    profile["features"]["income"]["least"] = 30_000
    near = pd.read_csv(CREDIT / "near_threshold.csv")
    near["income"] = near["income"].clip(lower=30_000)
    compiled = compile_model(CREDIT / "credit.onnx", DeepShap(near), decision=profile)
    compiled.write(tmp_path, "credit")
    assert call(tmp_path, "credit", "--input", str(CREDIT / "applicants.csv")).exit_code == 0
    refused = [seen.text for seen in read().of("p") if seen.text.startswith("Not decided")]
    assert len(refused) == 1
    assert "'income' is" in refused[0]
    assert len(read().of("div", "decision")) == 3
