"""The baselines answer what the reference values are: a comparison with something wrong would be none."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest

from compiler.bench.peers import quietly
from loadtests import prepare as preparation
from loadtests.baselines import workers
from loadtests.baselines.explainers import BASE, EXPLAINERS
from loadtests.baselines.service import create_app
from loadtests.plan import EXPLAIN, PREDICT
from loadtests.prepare import prepare
from loadtests.systems import expected_of
from loadtests.wanted import ATTRIBUTIONS, EXPECTED, OUTPUT, PATHS, Wanted, rest_answer, rest_body
from tests.loadtests.conftest import SMALL, TREES


async def ask(folder, name, verb, first, count):
    wanted = Wanted.read(folder, EXPECTED)
    body = rest_body(wanted.rows[wanted.places(first, count)])
    with quietly(), ThreadPoolExecutor(1) as thread, pytest.MonkeyPatch.context() as patch:
        predict, explain = EXPLAINERS[name](folder)
        patch.setattr(workers, "_verbs", {PREDICT: predict, EXPLAIN: explain})
        app = create_app(workers.asking({PREDICT: thread, EXPLAIN: thread}))
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://baseline") as client:
            reply = await client.post(PATHS[verb], content=body)
    return wanted, rest_answer(reply.raise_for_status().content)


@pytest.mark.parametrize("name", ["shap", "captum"])
@pytest.mark.parametrize("verb", [PREDICT, EXPLAIN])
async def test_a_baseline_gives_the_reference_values(folder, name, verb):
    wanted, answer = await ask(folder, name, verb, first=6, count=3)  # around the end of 8 rows
    assert wanted.fits(verb, 6, 3, answer)
    assert not wanted.fits(verb, 5, 3, answer), "answers about other rows are told apart"


@pytest.mark.parametrize("name", ["shap", "captum"])
async def test_attributions_and_base_value_add_up(folder, name):
    _, answer = await ask(folder, name, EXPLAIN, first=0, count=3)
    summed = answer[BASE] + answer[ATTRIBUTIONS].sum(-1)
    assert summed[:, 0] == pytest.approx(answer[OUTPUT].max(1), abs=1e-4)


def test_a_baseline_that_computes_something_else_has_answers_of_its_own_where_it_is_measured(
    monkeypatch, tmp_path
):
    monkeypatch.setattr(preparation, "misses", lambda _: ["something"])
    prepare(SMALL, tmp_path, ["rationale", "captum"])
    assert [path.name for path in tmp_path.glob("expected-*")] == ["expected-captum.npz"]
    assert expected_of("captum", tmp_path) == "expected-captum.npz"
    assert expected_of("rationale", tmp_path) == EXPECTED


async def test_trees_are_explained(tmp_path):
    prepare(TREES, tmp_path)
    wanted, answer = await ask(tmp_path, "shap-trees", EXPLAIN, first=2, count=3)
    assert wanted.fits(EXPLAIN, 2, 3, answer)
    summed = answer[BASE] + answer[ATTRIBUTIONS].sum(-1)
    assert summed == pytest.approx(answer[OUTPUT], abs=1e-3)
    assert np.ptp(answer[OUTPUT]) > 0.1
