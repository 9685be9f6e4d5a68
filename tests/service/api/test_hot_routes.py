"""The shorter way answers as the router does: the same app is asked with it and without."""

from pathlib import Path

import httpx
import pytest

from service.app import create_app, create_backend
from service.settings import Settings
from tests.service.conftest import client_of

TENSOR = {"name": "x", "shape": [2, 4], "datatype": "FP32", "data": [1, 2, 3, 4, 5, 6, 7, 8]}
OIP = {"inputs": [TENSOR], "id": "7"}
V1 = {"instances": [[1, 2, 3, 4]]}
ASKED = [
    ("/v2/models/score/infer", OIP),
    ("/v2/models/score/versions/1/infer", OIP),
    ("/v2/models/score/versions/1/explain", OIP),
    ("/v2/models/score/explain", OIP),
    ("/v2/models/score_explain/infer", OIP),
    ("/v1/models/score:predict", V1),
    ("/v1/models/score:explain", V1),
    ("/v2/models/score/versions/2/infer", OIP),
    ("/v2/models/nobody/infer", OIP),
    ("/v2/models/sco%72e/infer", OIP),
    ("/v2/models/..%2fscore/infer", OIP),
    ("/v2/models/score%00/infer", OIP),
    ("/v2/models/score%0A/infer", OIP),
    ("/v2/models//infer", OIP),
    ("/v2/models/score/infer/", OIP),
    ("/v1/models/a:b:predict", V1),
    ("/v1/models/score:guess", V1),
    ("/v2/models/score/infer", {"inputs": 5}),
]


@pytest.mark.parametrize(("path", "body"), ASKED)
@pytest.mark.parametrize("method", ["POST", "GET"])
async def test_both_ways_answer_alike(repository: Path, method: str, path: str, body: dict) -> None:
    answers = []
    for way in ("hot", "router"):
        settings = Settings(repository=repository)
        app = create_app(settings, create_backend(settings))
        if way == "router":
            app.hot = None
        async with app.router.lifespan_context(app), client_of(app) as client:
            await app.state.loading
            answers.append(await client.request(method, path, json=body))
    hot, router = answers
    assert hot.status_code == router.status_code, (hot.text, router.text)
    assert without_chance(hot) == without_chance(router)


def without_chance(answer: httpx.Response) -> tuple[bytes, dict[str, str]]:
    return answer.content, {
        name: value for name, value in answer.headers.items() if name not in ("date", "x-request-id")
    }
