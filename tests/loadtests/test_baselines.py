"""The baselines answer what the reference values are: a comparison with something wrong would be none."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from tritonclient.http import InferenceServerClient

from benchmarks.timing import quietly
from loadtests.load import prepare as preparation
from loadtests.load.expected import ATTRIBUTIONS, BASE, EXPECTED, MODEL, OUTPUT, PATHS, compared
from loadtests.load.prepare import prepare
from loadtests.load.questions import EXPLAIN, PREDICT, WrongAnswerError
from loadtests.systems.baselines import workers
from loadtests.systems.baselines.explainers import verbs
from loadtests.systems.baselines.service import create_app
from loadtests.systems.variants import expected_of
from tests.loadtests.conftest import SMALL


async def ask(folder, name, verb, first):
    """The questions about three rows, and the answer to one of them."""
    questions = compared(folder / EXPECTED, MODEL, 3)[verb]
    body, headers = questions[first].as_json
    with quietly(), ThreadPoolExecutor(1) as thread, pytest.MonkeyPatch.context() as patch:
        predict, explain = verbs(name, folder)
        patch.setattr(workers, "_verbs", {PREDICT: predict, EXPLAIN: explain})
        app = create_app(workers.asking({PREDICT: thread, EXPLAIN: thread}), PATHS)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://baseline") as client:
            reply = await client.post(questions[first].path, content=body, headers=headers)
    result = InferenceServerClient.parse_response_body(reply.raise_for_status().content)
    return questions, result.as_numpy


@pytest.mark.parametrize("name", ["shap", "captum"])
@pytest.mark.parametrize("verb", [PREDICT, EXPLAIN])
async def test_a_baseline_gives_the_reference_values(folder, name, verb):
    questions, answer = await ask(folder, name, verb, first=6)  # around the end of 8 rows
    questions[6].check(answer)
    with pytest.raises(WrongAnswerError, match="differs"):  # answers about other rows are told apart
        questions[5].check(answer)


@pytest.mark.parametrize("name", ["shap", "captum"])
async def test_attributions_and_base_value_add_up(folder, name):
    _, answer = await ask(folder, name, EXPLAIN, first=0)
    summed = answer(BASE) + answer(ATTRIBUTIONS).sum(-1)
    assert summed[:, 0] == pytest.approx(answer(OUTPUT).max(1), abs=1e-4)


def test_a_baseline_that_computes_something_else_has_answers_of_its_own_where_it_is_measured(
    monkeypatch, tmp_path
):
    monkeypatch.setattr(preparation, "misses", lambda _: ["something"])
    prepare(SMALL, tmp_path, ["rationale", "captum"])
    assert [path.name for path in tmp_path.glob("expected-*")] == ["expected-captum.npz"]
    assert expected_of("captum", tmp_path) == "expected-captum.npz"
    assert expected_of("rationale", tmp_path) == EXPECTED
