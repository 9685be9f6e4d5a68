"""Killed with -9 at any moment of a publication, a gateway comes back with the old one or the new one."""

import asyncio
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rationale_service.models.explainers import builder as builder
from tests.service import handmade, patient
from tests.service.child import Child, ready_line, serve
from tests.service.explainers.crashing import POINTS
from tests.service.explaining import (
    ATTRIBUTIONS,
    DEEPSHAP,
    OTHER,
    PATH,
    Gate,
    administered,
    explain,
    made_ready,
    sets_of,
    settled,
    write_plain,
)

IN_EVERY_RUN = ("renamed", "committed")
SECONDS = 60


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository and its state, with the explainer `one` of the set `typical`."""
    folder = tmp_path_factory.mktemp("published")
    write_plain(folder / "models")

    async def publish() -> None:
        async with administered(folder, sets_of(folder)) as client:
            await made_ready(client, f"{PATH}/one", DEEPSHAP)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(builder, "compile_entry", Gate())
        asyncio.run(publish())
    return folder


def kind_of(attributions: np.ndarray) -> str:
    (kind,) = (name for name, a in ATTRIBUTIONS.items() if np.allclose(attributions, a, rtol=1e-5, atol=1e-5))
    return kind


@pytest.mark.full
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    "point", [p if p in IN_EVERY_RUN else pytest.param(p, marks=pytest.mark.slow) for p in POINTS]
)
async def test_killed_during_publication(published: Path, tmp_path: Path, point: str) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(published, folder)
    command = [sys.executable, "-m", "tests.service.explainers.crashing", str(folder), point]
    died = await asyncio.to_thread(subprocess.run, command, check=False, timeout=SECONDS)
    assert died.returncode == -signal.SIGKILL
    async with administered(folder, sets_of(folder), grace_s=0.1) as client:
        at_once = kind_of((await explain(client))["x_attributions"])
        assert at_once == ("other" if point in ("committed", *list(POINTS)[-3:]) else "typical")
        status = await settled(client, f"{PATH}/one")
        expected = DEEPSHAP if point == "before it is recorded" else OTHER
        assert (status["state"], status["asked"]) == ("ready", expected)
        assert kind_of((await explain(client))["x_attributions"]) == expected["reference_set"]
        await only_one_is_served(folder, status["serving"]["entry"])
        assert [p.name for p in (folder / "models.state" / "staging").iterdir()] == []


async def only_one_is_served(folder: Path, entry: str) -> None:
    end_s = time.monotonic() + SECONDS
    while sorted(path.name for path in (folder / "models").iterdir()) != ["score", entry]:
        assert time.monotonic() < end_s
        await asyncio.sleep(0.05)


def kinds(url: str) -> str | None:
    """Which of two explanations answers now: checked to be all of one, with its own digest."""
    tensor = {
        "name": "x",
        "shape": list(handmade.X.shape),
        "datatype": "FP32",
        "data": handmade.X.ravel().tolist(),
    }
    answer = patient.post(f"{url}/v2/models/score/explain", json={"inputs": [tensor]})
    if answer.status_code == 404:
        return None
    assert answer.status_code == 200, answer.text
    body = answer.json()
    arrays = {o["name"]: np.array(o["data"]).reshape(o["shape"]) for o in body["outputs"]}
    np.testing.assert_allclose(arrays["y"], handmade.predict(handmade.X), rtol=1e-5)
    attributions = arrays["x_attributions"]
    return (
        "plain"
        if np.allclose(attributions, handmade.X[:, None] * handmade.W.T, rtol=1e-4, atol=1e-4)
        else "other"
    )


@contextlib.contextmanager
def gateway(folder: Path) -> Iterator[tuple[Child, str]]:
    with serve("--repository", str(folder / "models"), "--port", "0", "--grpc-port", "off") as child:
        yield child, ready_line(child)[0]


@pytest.mark.full
def test_a_stop_during_a_compile(tmp_path: Path) -> None:
    """It ends at once and cleanly; what was begun is gone on with at the next start."""
    write_plain(tmp_path / "models")
    with gateway(tmp_path) as (child, url):
        assert patient.put(f"{url}{PATH}/one", json={"method": "gradient"}).status_code == 202
        workers = Path(f"/proc/{child.pid}/task/{child.pid}/children")
        end_s = time.monotonic() + SECONDS
        while not workers.read_text():
            assert time.monotonic() < end_s
            time.sleep(0.01)
        (worker,) = workers.read_text().split()
        child.send_signal(signal.SIGTERM)
        assert child.wait(SECONDS) == 0
        assert "Traceback" not in child.stderr.read()
        while Path(f"/proc/{worker}").exists():  # it was killed, and may be on its way out
            assert time.monotonic() < end_s
            time.sleep(0.01)
    assert list((tmp_path / "models.state" / "staging").iterdir()) == []
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["score"]
    with gateway(tmp_path) as (_, url):
        status = patient.get(f"{url}{PATH}/one").json()
        assert status["state"] != "failed", status


@pytest.mark.slow
def test_killed_at_random_moments_with_real_workers(tmp_path: Path) -> None:
    """Thirty lives of one gateway, each cut short at a random moment after a PUT."""
    write_plain(tmp_path / "models")
    draw = random.Random(1)  # noqa: S311
    for life in range(30):
        with gateway(tmp_path) as (child, url):
            for path in (tmp_path / "models").iterdir():
                assert (path / "config.pbtxt").is_file()
            kinds(url)
            spec = {"method": "integrated-gradients", "options": {"steps": 2 + life % 5}, "targets": "all"}
            assert patient.put(f"{url}{PATH}/one", json=spec).status_code in (200, 202)
            time.sleep(draw.uniform(0, 4))
            os.kill(child.pid, signal.SIGKILL)
            child.wait()
    with gateway(tmp_path) as (_, url):
        end_s = time.monotonic() + SECONDS
        while (status := patient.get(f"{url}{PATH}/one").json())["state"] not in ("ready", "failed"):
            assert time.monotonic() < end_s
            time.sleep(0.1)
        if status["state"] == "failed":  # three lives in a row were cut short while it was made
            assert "3 times" in status["error"]
            patient.put(f"{url}{PATH}/one", json=status["asked"])
            while patient.get(f"{url}{PATH}/one").json()["state"] != "ready":
                assert time.monotonic() < end_s
                time.sleep(0.1)
        assert kinds(url) == "plain"
