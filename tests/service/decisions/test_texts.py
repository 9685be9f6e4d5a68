"""Texts that a fitted model does not know, and missing ones: the same at every door and in the trail."""

import io
import json
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import lightgbm as lgb
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import xgboost as xgb
from optbinning import BinningProcess, Scorecard
from sklearn.linear_model import LogisticRegression
from tritonclient.grpc import InferInput
from tritonclient.grpc.aio import InferenceServerClient

from rationale import InvalidOptionError, TreeShap, Undecided, compile_model, load
from rationale.export.fields import fields
from rationale.portfolios.arrow import explain_batches
from rationale.portfolios.explain import explain_file
from rationale.schema.manifest import Manifest
from rationale.schema.request import silent
from rationale_service.decisions.audit.ledger import open_ledger
from rationale_service.decisions.records.receipt import write_receipt
from rationale_service.decisions.records.replay import Replayer
from rationale_service.settings import Settings
from tests.service.conftest import gateway
from tests.service.decisions.portfolio.test_portfolio import decide, lines
from tests.service.decisions.test_grpc import decisions, request
from tests.service.explaining import made_ready
from tests.service.grpc_end import grpc_end, refused

RANDOM = np.random.default_rng(5)
KIND = RANDOM.choice(["home", "car", "card"], 400).astype(object)
KIND[::4] = None
DEBT = RANDOM.normal(3, 1, 400)
BAD = (DEBT + 1.5 * (KIND == "car") + 2 * pd.isna(KIND) + RANDOM.normal(size=400) > 4).astype(int)
CODES = np.where(pd.isna(KIND), np.nan, np.where(KIND == "car", 7, np.where(KIND == "card", 2, 31)))
PROFILE: dict[str, Any] = {
    "output": "probabilities[1]",
    "threshold": 0.001,
    "adverse": "above",
    "space": "margin",
    "features": {
        "kind": {
            "reason": "K",
            "categories": {"home": "Home loan", "car": "Car loan", "card": "Credit card"},
        },
        "debt": {"reason": "D"},
    },
    "reasons": {"K": {"text": "Kind of loan", "missing": "Kind of loan not stated"}, "D": "Debt"},
}
CARD = {**PROFILE, "output": "score", "threshold": -5.0, "space": "output"}
UNKNOWN = "feature 'kind' is a category that the model was not trained on: it takes it as unknown or missing"
GAPS: list[dict[str, Any]] = [{"kind": None, "debt": 2.0}, {"kind": "", "debt": 2.0}]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    rows = pd.DataFrame({"kind": pd.Categorical(KIND), "debt": DEBT})
    boosted = xgb.XGBClassifier(n_estimators=9, enable_categorical=True).fit(rows, BAD)
    compile_model(boosted, TreeShap(rows[:50]), decision=PROFILE).write(folder, "xgboost")
    open_profile = {**PROFILE, "features": {**PROFILE["features"], "kind": {"reason": "K"}}}
    leaves = lgb.LGBMClassifier(n_estimators=9, verbose=-1).fit(rows, BAD)
    compile_model(leaves, TreeShap(rows[:50]), decision=open_profile).write(folder, "lightgbm")
    for name, model in (
        ("codes", xgb.XGBClassifier(n_estimators=9, enable_categorical=True)),
        ("leaves", lgb.LGBMClassifier(n_estimators=9, verbose=-1)),
    ):
        codes = rows.assign(kind=pd.Categorical(CODES, [2, 7, 31]))
        fitted = model.fit(codes, BAD)
        compile_model(fitted, TreeShap(codes[:50]), decision=open_profile).write(folder, name)
    words = pd.DataFrame({"kind": KIND, "debt": DEBT})
    binned = BinningProcess(["kind", "debt"], categorical_variables=["kind"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # optbinning's use of pandas
        card = Scorecard(binned, LogisticRegression()).fit(words, BAD, metric_missing="empirical")
    compile_model(card, TreeShap(words[:50]), decision=CARD).write(folder, "card")
    return folder


@pytest.fixture
def settings(models: Path, tmp_path: Path) -> Settings:
    return Settings(repository=models, state=tmp_path / "state")


@pytest.mark.parametrize("model", ["xgboost", "lightgbm", "card"])
async def test_a_missing_text_has_its_own_reason_by_each_protocol(settings: Settings, model: str) -> None:
    async with gateway(settings) as client:
        body = (await client.post(f"/v1/models/{model}:decide", json={"instances": GAPS})).json()["decisions"]
        explained = (await client.post(f"/v1/models/{model}:explain", json={"instances": GAPS})).json()
        tensors = [
            {"name": "kind", "datatype": "BYTES", "shape": [2, 1], "data": [None, ""]},
            {"name": "debt", "datatype": "FP64", "shape": [2, 1], "data": [2.0, 2.0]},
        ]
        second = await client.post(f"/v2/models/{model}_explain/infer", json={"inputs": tensors})
        assert second.status_code == 200, second.text
    async with grpc_end(settings) as end:
        by_grpc = decisions(await end.stub.ModelInfer(request(f"{model}:decide", GAPS)))
    for decision in (*body, *by_grpc):
        (reason,) = [item for item in decision["reasons"] if item["code"] == "K"]
        assert (reason["text"], reason["value"]) == ("Kind of loan not stated", None)
        assert decision["warnings"] == []
        assert decision["attributions"] == body[0]["attributions"]
    first, other = explained["explanations"]
    assert first == other
    assert "warnings" not in explained
    decided = load(settings.repository, model).decide(
        pd.DataFrame({"kind": [None, np.nan, pd.NA, ""], "debt": 2.0})
    )
    for item in decided:
        assert item.score == body[0]["score"]
        assert [reason.text for reason in item.reasons if reason.code == "K"] == ["Kind of loan not stated"]


async def test_a_text_that_the_model_refuses_is_refused_by_name(settings: Settings) -> None:
    rows = [{"kind": "car", "debt": 2.0}, {"kind": "Car", "debt": 2.0}]
    message = (
        "feature 'kind' is 'Car', a category that is not in the training data, and the model refuses it "
        "(do you mean 'car'?)"
    )
    async with gateway(settings) as client:
        for verb in ("decide", "explain", "predict"):
            answer = await client.post(f"/v1/models/xgboost:{verb}", json={"instances": rows})
            assert answer.status_code == 422, answer.text
            assert message in answer.json()["detail"]
            assert ("instances[1]" if verb == "decide" else "row 1") in answer.json()["detail"]
    async with grpc_end(settings) as end, InferenceServerClient(end.address) as client:
        await refused(end.stub.ModelInfer(request("xgboost:decide", rows)), "INVALID_ARGUMENT", message)
        inputs = [InferInput("kind", [1, 1], "BYTES"), InferInput("debt", [1, 1], "FP64")]
        inputs[0].set_data_from_numpy(np.array([[b"Car"]], object))
        inputs[1].set_data_from_numpy(np.array([[2.0]]))
        with pytest.raises(Exception, match="training data"):
            await client.infer("xgboost_explain", inputs)
    good, unusual = load(settings.repository, "xgboost").decide(pd.DataFrame(rows))
    assert good.decision == "decline"
    assert isinstance(unusual, Undecided)
    assert unusual.fault.startswith(message)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("kind", ["csv", "json", "parquet"])
async def test_an_explainer_made_later_reads_rows_as_the_compiled_one_does(
    models: Path, tmp_path: Path, kind: str
) -> None:
    """Texts, missing values and names are the model's, and no explainer's own."""
    known_rows: list[dict[str, Any]] = [{"kind": "car", "debt": 2.0}, {"kind": None, "debt": None}]
    unknown: list[dict[str, Any]] = [{"kind": "Car", "debt": 2.0}]
    message = "'Car', a category that is not in the training data"
    path = "/v2/reference-sets/small?model=xgboost"
    shutil.copytree(models, tmp_path / "models")
    async with gateway(Settings(repository=tmp_path / "models", state=tmp_path / "state")) as client:
        form = (await client.get("/v1/models/xgboost/features")).json()["features"]
        answer = await client.put(path, **upload(kind, unknown))
        assert (answer.status_code, message in answer.text) == (422, True), answer.text
        answer = await client.put(path, **upload(kind, [*known_rows, {"kind": "home", "debt": 3.5}]))
        assert answer.status_code == 201, answer.text
        assert answer.json()["inputs"]["kind"] == {"datatype": "BYTES", "shape": [3, 1]}
        spec = {"method": "treeshap", "reference_set": "small", "logits": True, "default": True}
        await made_ready(client, "/v2/models/xgboost/explainers/later", spec)
        later = (await client.get("/v1/models/xgboost/features")).json()
        assert later["explainer"] == "later"
        members = ["name", "kind", "input", "title", "missing", "called"]
        assert [[f.get(key) for key in members] for f in later["features"]] == [
            [f.get(key) for key in members] for f in form
        ]
        for verb in ("predict", "explain"):
            answer = await client.post(f"/v1/models/xgboost:{verb}", json={"instances": known_rows})
            assert answer.status_code == 200, answer.text
            answer = await client.post(f"/v1/models/xgboost:{verb}", json={"instances": unknown})
            assert (answer.status_code, message in answer.text) == (422, True), answer.text


def upload(kind: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return rows as a client sends them."""
    frame, body = pd.DataFrame(rows), io.BytesIO()
    if kind == "json":
        return {"json": rows}
    if kind == "csv":
        return {"content": frame.to_csv(index=False), "headers": {"Content-Type": "text/csv"}}
    frame.to_parquet(body)
    return {"content": body.getvalue(), "headers": {"Content-Type": "application/vnd.apache.parquet"}}


@pytest.mark.parametrize("code", [3, 7.5, -1, 40])
async def test_a_number_that_is_no_category_is_as_such_a_text(settings: Settings, code: float) -> None:
    rows = [{"kind": 7, "debt": 2.0}, {"kind": None, "debt": 2.0}, {"kind": code, "debt": 2.0}]
    message = (
        f"feature 'kind' is '{code}', a category that is not in the training data, and the model refuses it"
    )
    async with gateway(settings) as client:
        for verb in ("decide", "explain", "predict"):
            answer = await client.post(f"/v1/models/codes:{verb}", json={"instances": rows})
            assert answer.status_code == 422, answer.text
            assert message in answer.json()["detail"]
            known_answer = await client.post(f"/v1/models/codes:{verb}", json={"instances": rows[:2]})
            assert known_answer.status_code == 200, known_answer.text
        explained = (await client.post("/v1/models/leaves:explain", json={"instances": rows})).json()
        decided = (await client.post("/v1/models/leaves:decide", json={"instances": rows})).json()
    assert explained["warnings"] == [f"row 2: {UNKNOWN}"]
    assert [decision["warnings"] for decision in decided["decisions"]] == [[], [], [UNKNOWN]]
    async with grpc_end(settings) as end:
        await refused(end.stub.ModelInfer(request("codes:decide", rows)), "INVALID_ARGUMENT", message)
        by_grpc = decisions(await end.stub.ModelInfer(request("leaves:decide", rows)))
    assert [decision["warnings"] for decision in by_grpc] == [[], [], [UNKNOWN]]
    frame = pd.DataFrame(rows)
    *_, unusual = load(settings.repository, "codes").decide(frame)
    assert isinstance(unusual, Undecided)
    assert unusual.fault.startswith(message)
    with pytest.raises(InvalidOptionError, match=message):
        load(settings.repository, "codes").explain(frame)
    with pytest.raises(InvalidOptionError, match=message):
        list(explain_batches(Path(settings.repository) / "codes", pa.Table.from_pandas(frame)))


def test_in_a_file_it_is_that_rows_fault(settings: Settings, tmp_path: Path) -> None:
    file, save = tmp_path / "rows.csv", tmp_path / "saved.jsonl"
    file.write_text("kind,debt\ncar,2.0\nCar,2.0\n,2.0\n")
    code, _, errors = decide("xgboost", "--input", file, "--save", save, "--repository", settings.repository)
    assert code == 1, errors
    good, unusual, missing = lines(save)
    assert good["decision"]["decision"] == missing["decision"]["decision"] == "decline"
    assert (
        "feature 'kind' is 'Car', a category that is not in the training data, and the model refuses it"
        in unusual["fault"]
    )
    (reason,) = [item for item in missing["decision"]["reasons"] if item["code"] == "K"]
    assert (reason["text"], reason["value"]) == ("Kind of loan not stated", None)


async def test_a_text_that_the_model_takes_as_unknown_warns_and_the_trail_has_it(settings: Settings) -> None:
    rows = [{"kind": "car", "debt": 2.0}, {"kind": "boat", "debt": 2.0}]
    async with gateway(settings) as client:
        answer = (await client.post("/v1/models/lightgbm:decide", json={"instances": rows})).json()
        explained = (await client.post("/v1/models/lightgbm:explain", json={"instances": rows})).json()
        predicted = (await client.post("/v1/models/lightgbm:predict", json={"instances": rows})).json()
    first, second = answer["decisions"]
    assert (first["warnings"], second["warnings"]) == ([], [UNKNOWN])
    assert explained["warnings"] == predicted["warnings"] == [f"row 1: {UNKNOWN}"]
    ledger = open_ledger(settings)
    recorded = ledger.read(second["id"], None)
    ledger.close()
    assert recorded.answer["warnings"] == [UNKNOWN]
    replayed = Replayer(settings).replay(recorded)
    assert replayed.differences == ()
    decided = load(settings.repository, "lightgbm").decide(pd.DataFrame(rows))
    assert [None if isinstance(decision, Undecided) else decision.warnings for decision in decided] == [
        (),
        (UNKNOWN,),
    ]


async def test_a_receipt_of_a_missing_text(settings: Settings, tmp_path: Path) -> None:
    async with gateway(settings) as client:
        answer = (await client.post("/v1/models/xgboost:decide", json={"instances": GAPS})).json()
    ledger = open_ledger(settings)
    for i, decision in enumerate(answer["decisions"]):
        recorded = ledger.read(decision["id"], None)
        folder = tmp_path / f"receipt-{i}"
        assert Replayer(settings).replay(recorded).differences == ()
        write_receipt(recorded, Replayer(settings).entry(recorded), folder)
        process = subprocess.run(
            [sys.executable, folder / "check.py"], capture_output=True, text=True, check=False
        )
        assert process.returncode == 0, process.stdout + process.stderr
    ledger.close()


def test_a_page_offers_the_texts_that_the_model_knows_and_none(models: Path) -> None:
    manifest = Manifest.read(models / "xgboost_explain" / "explanation.json")
    kind, _ = fields(manifest, {}, ())
    assert kind["missing"] is True
    assert kind["choices"] == ["home", "car", "card"]
    manifest = Manifest.read(models / "lightgbm_explain" / "explanation.json")
    kind, _ = fields(manifest, {}, ())
    assert set(kind["choices"]) == {"home", "car", "card"}
    assert json.loads(manifest.to_json())["parity"]["texts"]["kind"][0]["others"] == "unknown"


def test_explanations_warn_of_unknown_texts(models: Path, tmp_path: Path) -> None:
    rows = pd.DataFrame({"kind": ["home", "boat"] + ["home"] * 11 + ["x"] * 11, "debt": 2.0})
    compiled = load(models, "lightgbm")
    assert compiled.explain(rows[:1]).warnings == ()
    assert compiled.explain(rows[:3]).warnings == (f"row 1: {UNKNOWN}",)
    rows.to_csv(tmp_path / "rows.csv", index=False)
    message = explain_file(models, "lightgbm", tmp_path / "rows.csv", None, 3, 1, silent)
    assert message[-11] == f"warning: row 2: {UNKNOWN}"
    assert message[-1] == "warning: 2 more rows with such texts"


def test_files_that_are_only_explained_are_refused_too(models: Path, tmp_path: Path) -> None:
    rows = pd.DataFrame({"kind": ["home", "CAR "], "debt": [2.0, 3.0]})
    rows.to_csv(tmp_path / "rows.csv", index=False)
    with pytest.raises(InvalidOptionError, match=r"row 1: .*'kind' is 'CAR ', .* 'car'\?"):
        explain_file(models, "xgboost", tmp_path / "rows.csv", None, 3, None, silent)
    with pytest.raises(InvalidOptionError, match=r"row 1: .*'kind' is 'CAR ', .* 'car'\?"):
        list(explain_batches(models / "xgboost", pa.Table.from_pandas(rows)))
    known_rows = rows.assign(kind=["home", None])
    assert (
        sum(batch.num_rows for batch in explain_batches(models / "xgboost", pa.Table.from_pandas(known_rows)))
        > 0
    )


@pytest.mark.parametrize(("model", "kinds"), [("lightgbm", ["home", "x", "y"]), ("leaves", [7, 8, 9])])
def test_batches_with_unknown_categories_are_a_warning(models: Path, model: str, kinds: list[Any]) -> None:
    rows = pa.Table.from_pylist([{"kind": kind, "debt": 2.0} for kind in kinds])
    explained_batches = explain_batches(models / model, rows[:1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert sum(batch.num_rows for batch in explained_batches) == 1
    parts = [*rows[:1].to_batches(), *rows.to_batches()]  # rows are counted through the whole stream
    for given, first in ((rows, 0), (parts, 1)):
        text = f"^batch from row {first}: row {first + 1}: {UNKNOWN}; and 1 more"
        with pytest.warns(UserWarning, match=text):
            assert sum(batch.num_rows for batch in explain_batches(models / model, given)) == 3 + first
