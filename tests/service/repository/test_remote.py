"""A gateway whose repository is in a bucket: copied, followed, and served without the bucket."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rationale import DeepShap, compile_model
from rationale_service.repository.remote import local_repository
from rationale_service.settings import Settings
from tests.compiler.models import FEATURES, mlp, rows
from tests.service import handmade, patient
from tests.service.child import ready_line, serve
from tests.service.explaining import (
    GRADIENT,
    PATH,
    administered,
    assert_answers,
    explain,
    made_ready,
    write_plain,
)
from tests.service.state.cluster import BUCKET, S3, s3

X = rows(3, FEATURES)
ARGUMENTS = ("--repository", f"s3://{BUCKET}/models", "--port", "0", "--grpc-port", "off")


@pytest.fixture
def storage() -> Iterator[S3]:
    with s3() as storage:
        yield storage


def upload(storage: S3, folder: Path) -> None:
    client = storage.client()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        key = f"models/{path.relative_to(folder).as_posix()}"
        client.put_object(Bucket=BUCKET, Key=key, Body=path.read_bytes())


def folders(storage: S3) -> None:
    """As the console of a storage makes them: objects without content."""
    for key in ("models/", "models/m/", "models/m/1/", "models/new/"):
        storage.client().put_object(Bucket=BUCKET, Key=key, Body=b"")


def compiled(folder: Path, seed: int = 0) -> np.ndarray:
    """The first row's attributions by an entry that is written there."""
    compiled_model = compile_model(mlp(), DeepShap(rows(3, FEATURES, seed=seed)), targets=[1])
    compiled_model.write(folder, "m")
    (explained,) = compiled_model.manifest.attributed
    return compiled_model.explain(X)[explained.attributions][0].ravel()


def answered(url: str) -> np.ndarray:
    answer = patient.post(f"{url}/v1/models/m:explain", json={"instances": X.tolist()})
    assert answer.status_code == 200, answer.text
    return np.array([*answer.json()["explanations"][0]["attributions"].values()])


def test_where_it_is_and_where_its_copy() -> None:
    settings = Settings(repository="s3://bucket/models/", state="state")
    assert settings.repository == settings.repository_url == "s3://bucket/models"
    assert settings.repository_copy.parent == Path("state")
    assert settings.repository_copy != Settings(repository="s3://bucket/m", state="state").repository_copy
    assert Settings(repository="s3://bucket/models").state_folder == Path("models.state")
    assert Settings(repository="models").repository_url is None
    assert Settings(repository="models").repository == Path("models")
    for url in ("s3://", "s3:///", "S 3://a"):
        with pytest.raises(ValueError, match="folder, or a URL"):
            Settings(repository=url)
    with pytest.raises(ValueError, match="same folder"):
        Settings(repository="s3://a/b", triton="localhost:8001")


@pytest.mark.parametrize("state", [None, "elsewhere"])
def test_commands_read_the_copy_of_the_gateway(
    state: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    compiled(tmp_path / "far" / "models")
    url: Any = f"file://{tmp_path}/far/models"
    more: dict[str, Any] = {} if state is None else {"state": state}
    settings = Settings(repository=url, **more)
    folder = local_repository(settings)
    assert folder.parent == settings.repository_copy
    assert (folder / "m_explain" / "config.pbtxt").is_file()
    assert {path.name for path in tmp_path.iterdir()} == {"far", state or "models.state"}
    assert local_repository(Settings(repository=tmp_path / "far" / "models")) == tmp_path / "far" / "models"


def test_a_bucket_is_served_and_followed(storage: S3, tmp_path: Path) -> None:
    expected = compiled(tmp_path / "models")
    upload(storage, tmp_path / "models")
    folders(storage)
    settings = {**storage.environment, "RATIONALE_STATE": str(tmp_path / "state"), "RATIONALE_WATCH_S": "0.3"}
    with serve(*ARGUMENTS, **settings) as child:
        url, _ = ready_line(child)
        np.testing.assert_allclose(answered(url), expected, rtol=1e-4, atol=1e-6)
        # what is uploaded there is taken up
        new = compiled(tmp_path / "models", seed=5)
        assert np.abs(new - expected).max() > 1e-3
        upload(storage, tmp_path / "models")
        end_s = time.monotonic() + 60
        while np.abs(answered(url) - new).max() > 1e-4:  # until then the one before answers
            assert time.monotonic() < end_s
            time.sleep(0.1)
        # a file that is not what was written is refused, and listed; the one before answers on
        key = "models/m_explain/1/model.onnx"
        storage.client().put_object(Bucket=BUCKET, Key=key, Body=b"half")
        while not (reasons := _reasons(url)):
            assert time.monotonic() < end_s
            time.sleep(0.1)
        assert "its files" in reasons["m_explain"]
        np.testing.assert_allclose(answered(url), new, rtol=1e-4, atol=1e-6)


@pytest.mark.full
def test_a_bucket_that_does_not_answer_is_served_from_the_copy(storage: S3, tmp_path: Path) -> None:
    expected = compiled(tmp_path / "models")
    upload(storage, tmp_path / "models")
    settings = {**storage.environment, "RATIONALE_STATE": str(tmp_path / "state")}
    with serve(*ARGUMENTS, **settings) as child:
        ready_line(child)
    away = {**settings, "AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_MAX_ATTEMPTS": "1"}
    with serve(*ARGUMENTS, **away) as child:
        url, lines = ready_line(child)
        assert any("cannot be read" in line and "the earlier copy" in line for line in lines)
        np.testing.assert_allclose(answered(url), expected, rtol=1e-4, atol=1e-6)
    with serve(*ARGUMENTS, **away | {"RATIONALE_STATE": str(tmp_path / "another")}) as child:
        assert child.wait(60) == 2
        assert f"error: s3://{BUCKET}/models: cannot be read" in child.stderr.read()


def _reasons(url: str) -> dict[str, str]:
    listed = patient.post(f"{url}/v2/repository/index").json()
    return {model["name"]: model["reason"] for model in listed if model.get("reason")}


async def test_it_is_pulled_when_an_entry_is_loaded(tmp_path: Path) -> None:
    write_plain(tmp_path / "models")
    write_plain(tmp_path / "models", "other")
    url: Any = f"file://{tmp_path}/models"
    async with administered(tmp_path, repository=url, state=tmp_path / "state") as client:
        other = tmp_path / "models" / "other"
        write_plain(tmp_path / "new", "other", scale=2.0)
        for path in other.rglob("*"):
            if path.is_file():
                path.write_bytes((tmp_path / "new" / "other" / path.relative_to(other)).read_bytes())
        ask = {"instances": handmade.X.tolist()}
        before = (await client.post("/v1/models/other:predict", json=ask)).json()["predictions"]
        np.testing.assert_allclose(before, handmade.X @ handmade.W + handmade.B, rtol=1e-5)
        assert (await client.post("/v2/repository/models/other/load")).status_code == 200
        after = (await client.post("/v1/models/other:predict", json=ask)).json()["predictions"]
        assert np.abs(np.array(after) - before).max() > 1
        (tmp_path / "models").rename(tmp_path / "away")
        refused = await client.post("/v2/repository/models/other/load")
        assert refused.status_code == 503
        assert "no entry" in refused.json()["detail"]
        live = client.app.state.gateway.live  # type: ignore[attr-defined]  # our client holds its app
        with pytest.raises(OSError, match="no entry"):
            live.look()
        page = (await client.get("/metrics")).text
        assert 'rationale_dependency_failures_total{dependency="repository"} 2.0' in page
        repeated = (await client.post("/v1/models/other:predict", json=ask)).json()["predictions"]
        assert repeated == after


@pytest.mark.usefixtures("quick")
async def test_explainers_over_the_api_lie_beside_the_copy(tmp_path: Path) -> None:
    write_plain(tmp_path / "models")
    url: Any = f"file://{tmp_path}/models"
    options: dict[str, Any] = {"repository": url, "state": tmp_path / "state"}
    for _ in range(2):  # and after a restart
        async with administered(tmp_path, **options) as client:
            await made_ready(client, f"{PATH}/first", GRADIENT)
            assert_answers(await explain(client, explainer="first"), "gradient")
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["score"]
    (entry,) = (tmp_path / "state" / "entries").iterdir()
    assert entry.name.startswith("score_explain_")
