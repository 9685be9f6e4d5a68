"""Why A and not B: each row against a row, or a recorded decision, of its own."""

import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from sklearn.ensemble import GradientBoostingClassifier
from tritonclient.grpc import service_pb2 as pb
from typer.testing import CliRunner

from rationale import DeepShap, ExactShap, OpenReferences, TreeShap, compile_model
from rationale_service.cli.main import app
from rationale_service.decisions.audit.evidence.retention import erase
from rationale_service.decisions.audit.ledger import open_ledger
from rationale_service.errors import InvalidInputError, MalformedError, UnknownResourceError
from rationale_service.protocols.grpc.servicer import infer
from rationale_service.security.keys import Scope, new_key
from rationale_service.settings import Settings
from tests.compiler.models import NAMES, mlp, rows
from tests.references import trees as forest
from tests.service.decisions.audit.conftest import key_pair
from tests.service.decisions.decided import NETWORK, TABLE
from tests.service.explaining import Gate, administered
from tests.service.references.request_time import (
    ATTRIBUTIONS,
    BASE,
    R,
    X,
    arrays,
    ask,
    client,
    folder,
    served,
    tensor,
)

__all__ = ["client", "folder"]  # fixtures, found by their names

PARTNERS = rows(3, 5, seed=7)
TREES = forest.random_trees(3, ("LEQ", "LT"), columns=3)


def expected(partners: np.ndarray = PARTNERS) -> np.ndarray:
    compiled = compile_model(mlp(), DeepShap(OpenReferences(1)), targets="all")
    return compiled.explain(X, compare_with=partners)[ATTRIBUTIONS]


async def test_tensors_of_partners(client: httpx.AsyncClient) -> None:
    for partners in (PARTNERS, PARTNERS[:1]):
        answer = await ask(client, tensor("x_compare_with", partners))
        np.testing.assert_allclose(arrays(answer)[ATTRIBUTIONS], expected(partners), rtol=1e-5, atol=1e-6)
        assert len(answer.json()["parameters"]["references"]) == 64
    assert len(served(client)) == 1  # an entry for one reference, made once


async def test_rows_over_v1(client: httpx.AsyncClient) -> None:
    names = ["age", "income", "debt", "years", "cards"]
    named = [dict(zip(names, row, strict=True)) for row in PARTNERS.tolist()]
    for partners, count in ((named, 3), (named[:1], 1)):
        body = {"instances": X.tolist(), "compare_with": partners}
        answer = await client.post("/v1/models/net:explain", json=body)
        assert answer.status_code == 200, answer.text
        got = [
            [[t["attributions"][name] for name in names] for t in explanation["targets"]]
            for explanation in answer.json()["explanations"]
        ]
        np.testing.assert_allclose(got, expected(PARTNERS[:count]), rtol=1e-5, atol=1e-6)


async def test_over_grpc(client: httpx.AsyncClient) -> None:
    handler = client.app.state.gateway.handler  # type: ignore[attr-defined]  # `administered` adds the app
    message = pb.ModelInferRequest(model_name="net_explain")
    for name, array in (("x", X), ("x_compare_with", PARTNERS)):
        message.inputs.add(name=name, datatype="FP32", shape=array.shape)
        message.raw_input_contents.append(array.tobytes())
    answer = await infer(handler, message, None)
    outputs = {o.name: raw for o, raw in zip(answer.outputs, answer.raw_output_contents, strict=True)}
    attributions = np.frombuffer(outputs[ATTRIBUTIONS], np.float32).reshape(3, 3, 5)
    np.testing.assert_allclose(attributions, expected(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("written", [False, True], ids=["made for it", "compiled with three"])
async def test_trees(tmp_path: Path, quick: Gate, written: bool) -> None:
    """Exact, missing values too; own references of a request as well."""
    model, x, partners = forest.regressor(TREES), forest.rows(2, 4), forest.rows(1, 4)
    compile_model(model, TreeShap(forest.rows(3, 5)), targets="all").write(tmp_path / "models", "net")
    if written:
        compile_model(model, TreeShap(OpenReferences(3)), targets="all").write(tmp_path / "models", "net")
        quick.close()
    instances, others = (
        [[None if np.isnan(v) else v for v in row] for row in a.tolist()] for a in (x, partners)
    )
    async with administered(tmp_path) as client:
        body: dict[str, Any] = {"instances": instances, "compare_with": others}
        paired = await client.post("/v1/models/net:explain", json=body)
        assert (await client.get("/v1/models/net/features")).json()["request_references"] == 32
        body = {"instances": instances, "references": others[:3]}
        shared = await client.post("/v1/models/net:explain", json=body)
    for i, explanation in enumerate(paired.json()["explanations"]):
        got = [[*t["attributions"].values()] for t in explanation["targets"]]
        one = forest.shapley(lambda z: forest.scores(TREES, z), x[[i]], partners[[i]])[0]
        np.testing.assert_allclose(got, one, atol=1e-5)
        for t, target in enumerate(explanation["targets"]):
            moved = target["explained_value"] - target["base_value"]
            np.testing.assert_allclose(sum(got[t]), moved, atol=1e-5)
    all_three = forest.shapley(lambda z: forest.scores(TREES, z), x, partners[:3])
    got = [[[*t["attributions"].values()] for t in e["targets"]] for e in shared.json()["explanations"]]
    np.testing.assert_allclose(got, all_three, atol=1e-5)


@pytest.mark.parametrize("space", ["margin", "probability", "profile"])
async def test_an_answer_names_the_output_that_it_explains(tmp_path: Path, space: str) -> None:
    """References of a request leave it what the entry explains; every protocol says what that is."""
    x = rows(40, 3, seed=5)
    model = GradientBoostingClassifier(n_estimators=3, max_depth=2, random_state=0).fit(x, x[:, 0] > 0)
    profile = {
        "output": "probabilities[1]",
        "threshold": 0.5,
        "adverse": "above",
        "features": {name: {"title": name, "reason": "R"} for name in "abc"},
        "reasons": {"R": "A reason"},
    }
    method = TreeShap(x[:9], space="probability" if space == "probability" else "output")
    decision = profile if space == "profile" else None
    compiled = compile_model(model, method, feature_names=[*"abc"], decision=decision)
    compiled.write(tmp_path / "models", "net")
    explained = "probabilities_margin" if space == "margin" else "probabilities"
    name = compiled.manifest.inputs[0].name
    async with administered(tmp_path) as client:
        handler = client.app.state.gateway.handler  # type: ignore[attr-defined]  # `administered` adds the app
        for key in (None, "references", "compare_with"):
            own = {} if key is None else {key: x[9:12].tolist()}
            v1 = await client.post("/v1/models/net:explain", json={"instances": x[:3].tolist(), **own})
            assert v1.json()["explainer"]["explained_output"] == explained, v1.text
            tensors = [tensor(name, x[:3])] + ([] if key is None else [tensor(f"{name}_{key}", x[9:12])])
            v2 = await client.post("/v2/models/net/explain", json={"inputs": tensors})
            assert v2.json()["parameters"]["explained_output"] == explained, v2.text
            message = pb.ModelInferRequest(model_name="net_explain")
            for sent in tensors:
                message.inputs.add(name=sent["name"], datatype="FP32", shape=sent["shape"])
                message.raw_input_contents.append(np.array(sent["data"], np.float32).tobytes())
            answer = await infer(handler, message, None)
            assert answer.parameters["explained_output"].string_param == explained
            for prediction, one in zip(v1.json()["predictions"], v1.json()["explanations"], strict=True):
                value = one["explained_value"]
                score = 1 / (1 + np.exp(-value)) if space == "margin" else value
                np.testing.assert_allclose(score, prediction["probabilities"][1], atol=1e-6)


REFUSED: dict[str, tuple[list[dict[str, Any]], dict[str, Any], str]] = {
    "another number": (
        [tensor("x_compare_with", PARTNERS[:2])],
        {},
        "2 rows for 3: send one for each, or one",
    ),
    "references too": (
        [tensor("x_compare_with", PARTNERS), tensor("x_references", R)],
        {},
        "leave references and reference_set out",
    ),
    "a set too": ([tensor("x_compare_with", PARTNERS)], {"reference_set": "s"}, "leave references"),
    "width": ([tensor("x_compare_with", PARTNERS[:, :4])], {}, "takes"),
    "another input": ([tensor("y_compare_with", PARTNERS)], {}, "unknown input"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_what_is_refused(client: httpx.AsyncClient, name: str) -> None:
    more, parameters, message = REFUSED[name]
    answer = await ask(client, *more, **parameters)
    assert answer.status_code == 422, answer.text
    assert message in answer.json()["detail"]
    assert served(client) == set()


@pytest.mark.parametrize("wrong", ["x", [], {}, 1])
async def test_what_is_no_list(client: httpx.AsyncClient, wrong: Any) -> None:
    answer = await client.post(
        "/v1/models/net:explain", json={"instances": X.tolist(), "compare_with": wrong}
    )
    assert answer.status_code == 400
    assert "compare_with must be a list" in answer.json()["detail"]


@pytest.mark.usefixtures("quick")
async def test_a_method_whose_references_are_in_the_graph(tmp_path: Path) -> None:
    compile_model(mlp(), ExactShap(BASE), targets="all").write(tmp_path / "models", "net")
    async with administered(tmp_path) as client:
        answer = await ask(client, tensor("x_compare_with", PARTNERS))
        assert answer.status_code == 422
        assert "upload them as a reference set" in answer.json()["detail"]


@pytest.fixture
def deciding(tmp_path: Path) -> Path:
    """A repository with a perceptron that decides, and one more model."""
    network = mlp((5, 64, 64, 1), last="Sigmoid")
    for name in ("net", "other"):
        compiled = compile_model(network, DeepShap(rows(7, 5)), feature_names=NAMES, decision=NETWORK)
        compiled.write(tmp_path / "models", name)
    return tmp_path


INSTANCES = [{**row, "bankruptcies": 0} for row in TABLE[:3]]


async def decided(client: httpx.AsyncClient, model: str = "net", **headers: str) -> list[str]:
    answer = await client.post(f"/v1/models/{model}:decide", json={"instances": INSTANCES}, headers=headers)
    assert answer.status_code == 200, answer.text
    return [decision["id"] for decision in answer.json()["decisions"]]


@pytest.mark.usefixtures("quick")
async def test_recorded_decisions(deciding: Path) -> None:
    """The same numbers as for their rows, over v1 and OIP; each such call is recorded."""
    async with administered(deciding) as client:
        ids = await decided(client)
        answers = [
            await client.post(
                "/v1/models/net:explain", json={"instances": TABLE[3:6], "compare_with": partners}
            )
            for partners in (TABLE[:3], ids, ids[:1], TABLE[:1])
        ]
        assert [answer.status_code for answer in answers] == [200] * 4, [a.text for a in answers]
        by_rows, by_ids, by_id, by_row = (answer.json() for answer in answers)
        assert by_rows == by_ids
        assert by_id == by_row
        x = np.array([[row[name] for name in NAMES] for row in TABLE[3:6]], np.float32)
        oip = await ask(client, x=x, compare_with=", ".join(ids))
        message = pb.ModelInferRequest(model_name="net_explain")
        message.inputs.add(name="x", datatype="FP32", shape=x.shape)
        message.raw_input_contents.append(x.tobytes())
        message.parameters["compare_with"].string_param = ",".join(ids)
        answered = await infer(client.app.state.gateway.handler, message, None)  # type: ignore[attr-defined]
        assert answered.parameters["references"].string_param == oip.json()["parameters"]["references"]
        groups = arrays(oip)["group_attributions"][:, 0]
        values = [[*explanation["attributions"].values()] for explanation in by_ids["explanations"]]
        np.testing.assert_allclose(groups, values, rtol=1e-6)
        for e in by_ids["explanations"]:
            assert abs(e["explained_value"] - e["base_value"] - sum(e["attributions"].values())) < 1e-6
        other = await decided(client, "other")
        case = f"/v1/decisions/{ids[0]}"
        contest = await client.post(f"{case}:contest", json={"reason": "It is wrong"})
        judgment = await client.post(f"{case}:review", json={"reviewer": "M", "decision": "approve"})
        for partner, status, message in (
            ("0" * 32, 404, "no decision"),
            ("x", 404, "32 digits"),
            (other[0], 422, "belongs to another model than 'net'"),
            (contest.json()["id"], 422, "is a contest, which has no inputs"),
            (judgment.json()["id"], 422, "is a judgment, which has no inputs"),
        ):
            body = {"instances": TABLE[3:6], "compare_with": [partner]}
            answer = await client.post("/v1/models/net:explain", json=body)
            assert answer.status_code == status, answer.text
            assert message in answer.json()["detail"]
    listed = CliRunner().invoke(app, ["audit", "acts", "--repository", str(deciding / "models")])
    acts = [json.loads(line) for line in listed.stdout.splitlines()]
    compared = [act for act in acts if act["act"] == "COMPARE"]
    assert [act["status"] for act in compared] == [200, 200, 200, 200, 404, 404, 422, 422, 422]
    assert compared[0]["detail"] == {"compare_with": ids}


def by_ids(*ids: str, x: np.ndarray = X) -> pb.ModelInferRequest:
    """Return a request over gRPC whose rows are compared with decisions."""
    message = pb.ModelInferRequest(model_name="net_explain")
    message.inputs.add(name="x", datatype="FP32", shape=x.shape)
    message.raw_input_contents.append(x.tobytes())
    message.parameters["compare_with"].string_param = ",".join(ids)
    return message


@pytest.mark.usefixtures("quick")
async def test_ids_that_are_wrong_over_grpc(deciding: Path) -> None:
    """Unknown ones, those of another model, thousands, none, and parameters of another type."""
    async with administered(deciding) as client:
        handler = client.app.state.gateway.handler  # type: ignore[attr-defined]
        own, others = await decided(client), await decided(client, "other")
        message = by_ids(*own)
        assert len((await infer(handler, message, None)).parameters["references"].string_param) == 64
        refusals: list[tuple[list[str], type[Exception], str]] = [
            (["0" * 32], UnknownResourceError, "no decision"),
            (["x"], UnknownResourceError, "32 digits"),
            (["", own[0]], UnknownResourceError, "32 digits"),
            (["../" + own[0]], UnknownResourceError, "32 digits"),
            ([others[0]], InvalidInputError, "belongs to another model than 'net'"),
            ([*own[:2], others[0]], InvalidInputError, "belongs to another model than 'net'"),
            (own[:2], InvalidInputError, "2 rows for 3"),
            (own * 1000, InvalidInputError, "3000 decisions, more than 1000"),
            ([""], MalformedError, "must be a name"),
        ]
        for ids, kind, told in refusals:
            with pytest.raises(kind, match=told):
                await infer(handler, by_ids(*ids), None)
        for name, value in (("int64_param", 1), ("bool_param", True), ("double_param", 0.5)):
            message = by_ids(*own)
            setattr(message.parameters["compare_with"], name, value)
            with pytest.raises(MalformedError, match="compare_with must be a name"):
                await infer(handler, message, None)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
async def test_partners_that_are_no_numbers(client: httpx.AsyncClient, value: float) -> None:
    """Over gRPC as raw tensors, and over v1, whose JSON has no such numbers."""
    handler, partners = client.app.state.gateway.handler, PARTNERS.copy()  # type: ignore[attr-defined]
    partners[1, 2] = value
    message = pb.ModelInferRequest(model_name="net_explain")
    for name, array in (("x", X), ("x_compare_with", partners)):
        message.inputs.add(name=name, datatype="FP32", shape=array.shape)
        message.raw_input_contents.append(array.tobytes())
    with pytest.raises(InvalidInputError, match="rows of compare_with of 'x' hold"):
        await infer(handler, message, None)
    body = json.dumps({"instances": X.tolist(), "compare_with": partners.tolist()})
    answer = await client.post("/v1/models/net:explain", content=body)
    assert answer.status_code == 400
    for wrong in (None, "1", 1e39):
        named: list[list[Any]] = PARTNERS.tolist()
        named[1][2] = wrong
        answer = await client.post(
            "/v1/models/net:explain", json={"instances": X.tolist(), "compare_with": named}
        )
        assert (answer.status_code, "compare_with" in answer.json()["detail"]) == (422, True), answer.text


@pytest.mark.usefixtures("quick")
async def test_partners_whose_inputs_were_erased(deciding: Path) -> None:
    key = deciding / "audit.key"
    key.write_bytes(b"k" * 44)
    key.chmod(0o600)
    async with administered(deciding, audit_inputs="sealed", audit_key_file=key) as client:
        handler = client.app.state.gateway.handler  # type: ignore[attr-defined]
        ids = await decided(client)
        assert (await infer(handler, by_ids(*ids), None)).parameters["references"].string_param
        settings = Settings(repository=deciding / "models", audit_inputs="sealed", audit_key_file=key)
        ledger = open_ledger(settings)
        erase(ledger.store, ids[1], key_pair(deciding).private)
        ledger.close()
        with pytest.raises(InvalidInputError, match=f"{ids[1]} are erased in the trail: send the row"):
            await infer(handler, by_ids(*ids), None)
        body = {"instances": TABLE[3:6], "compare_with": ids}
        answer = await client.post("/v1/models/net:explain", json=body)
        assert (answer.status_code, "are erased in the trail" in answer.json()["detail"]) == (422, True)
        assert (await infer(handler, by_ids(ids[0]), None)).parameters["references"].string_param


@pytest.mark.usefixtures("quick")
async def test_decisions_need_the_scope_that_reads_them(deciding: Path, tmp_path: Path) -> None:
    tokens, tables = {}, []
    for name, scopes in (
        ("teller", [Scope.DECIDE, Scope.EXPLAIN]),
        ("officer", [Scope.EXPLAIN, Scope.AUDIT]),
    ):
        tokens[name], table = new_key(name, scopes, None)
        tables.append(table)
    keys = tmp_path / "keys.toml"
    keys.write_text("\n".join(tables))
    keys.chmod(0o600)
    async with administered(deciding, keys_file=keys) as client:
        as_teller, as_officer = ({"x-api-key": tokens[name]} for name in ("teller", "officer"))
        ids = await decided(client, **as_teller)
        body = {"instances": TABLE[3:6], "compare_with": ids}
        refused = await client.post("/v1/models/net:explain", json=body, headers=as_teller)
        assert refused.status_code == 403
        assert "audit" in refused.json()["detail"]
        answer = await client.post("/v1/models/net:explain", json=body, headers=as_officer)
        assert answer.status_code == 200, answer.text


@pytest.mark.usefixtures("quick")
async def test_inputs_that_the_trail_does_not_hold(deciding: Path) -> None:
    key = deciding / "audit.key"
    key.write_bytes(b"k" * 44)
    key.chmod(0o600)
    async with administered(deciding, audit_inputs="hashed", audit_key_file=key) as client:
        ids = await decided(client)
        body = {"instances": TABLE[3:6], "compare_with": ids}
        answer = await client.post("/v1/models/net:explain", json=body)
        assert answer.status_code == 422
        assert "are hashed in the trail: send the row instead" in answer.json()["detail"]


@pytest.mark.usefixtures("quick")
async def test_a_decision_takes_no_partner(deciding: Path) -> None:
    async with administered(deciding) as client:
        body = {"instances": INSTANCES, "compare_with": INSTANCES}
        answer = await client.post("/v1/models/net:decide", json=body)
        assert answer.status_code == 422
        assert "'compare_with' is of explanations" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("compare_with", PARTNERS.tolist()),
        ("compare_with", ["0" * 32]),
        ("references", R.tolist()),
        ("reference_weights", [1.0]),
        ("reference_set", "s"),
        ("explainer", "e"),
    ],
    ids=["rows", "ids", "references", "weights", "set", "explainer"],
)
async def test_a_prediction_takes_no_partner(client: httpx.AsyncClient, member: str, value: Any) -> None:
    path, body = "/v1/models/net:predict", {"instances": X.tolist()}
    answer = await client.post(path, json=body | {member: value})
    assert answer.status_code == 422
    assert f"'{member}' is of explanations" in answer.json()["detail"]
    assert (await client.post(path, json=body | {member: None})).status_code == 200


async def test_a_plain_model_takes_no_partner(client: httpx.AsyncClient) -> None:
    """Over the Open Inference Protocol, by HTTP and gRPC."""
    inputs = [{"name": "x", "shape": X.shape, "datatype": "FP32", "data": X.tolist()}]
    body: dict[str, Any] = {"inputs": inputs, "parameters": {"compare_with": "0" * 32}}
    answer = await client.post("/v2/models/net/infer", json=body)
    assert (answer.status_code, "'compare_with' applies to explain" in answer.text) == (422, True)
    message = pb.ModelInferRequest(model_name="net")
    message.inputs.add(name="x", datatype="FP32", shape=X.shape)
    message.raw_input_contents.append(X.tobytes())
    message.parameters["compare_with"].string_param = "0" * 32
    with pytest.raises(InvalidInputError, match="'compare_with' applies to explain"):
        await infer(client.app.state.gateway.handler, message, None)  # type: ignore[attr-defined]


async def test_ids_and_rows_are_not_mixed(client: httpx.AsyncClient) -> None:
    partners = ["0" * 32, *PARTNERS[1:].tolist()]
    for mixed in (partners, partners[::-1]):
        body = {"instances": X.tolist(), "compare_with": mixed}
        answer = await client.post("/v1/models/net:explain", json=body)
        assert answer.status_code == 400
        assert "mixes decision ids and rows" in answer.json()["detail"]


@pytest.mark.usefixtures("quick")
async def test_a_decision_whose_inputs_came_whole(deciding: Path) -> None:
    """By features or as a list, the recorded row is the same; what knock-outs read is no part of it."""
    whole = [{"x": [row[name] for name in NAMES], "bankruptcies": 0} for row in TABLE[:3]]
    async with administered(deciding) as client:
        answer = await client.post("/v1/models/net:decide", json={"instances": whole})
        assert answer.status_code == 200, answer.text
        ids = [decision["id"] for decision in answer.json()["decisions"]]
        bodies = ({"instances": TABLE[3:6], "compare_with": partners} for partners in (ids, TABLE[:3]))
        by_id, by_row = [await client.post("/v1/models/net:explain", json=body) for body in bodies]
        assert by_id.status_code == 200, by_id.text
        assert by_id.json() == by_row.json()
