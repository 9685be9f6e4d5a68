"""A stop does not wait for what hangs."""

import asyncio
import contextlib
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from rationale_service.process.ending import take_steps
from tests.service import handmade, patient
from tests.service.child import Child, ready_line, serve
from tests.service.decisions.audit.postgres import Postgres, postgres

ROWS = {"instances": [dict(zip(handmade.FEATURES, row, strict=True)) for row in handmade.X.tolist()]}
PROMISED_S = 40
HANGS = """
import asyncio, threading
from rationale_service.process.ending import LastResort

async def main():
    asyncio.get_running_loop().run_in_executor(None, threading.Event().wait)
    last_resort = LastResort()
    last_resort.set(60, 1)
    last_resort.set(0.2, 0)

asyncio.run(main())
"""


async def test_a_step_that_hangs_or_fails_keeps_no_other_from_its_turn(
    caplog: pytest.LogCaptureFixture,
) -> None:
    steps_run: list[str] = []

    async def hangs() -> None:
        await asyncio.Event().wait()

    async def fails() -> None:
        raise OSError("gone")

    async def works() -> None:
        await asyncio.sleep(0.05)
        steps_run.append("works")

    await asyncio.wait_for(take_steps({"one": hangs, "two": fails, "three": works}, 0.1), 5)
    assert steps_run == ["works"]
    assert [record.message for record in caplog.records] == [
        "the stop does not wait any longer for one",
        "the stop of two failed",
    ]


def test_a_thread_that_hangs_does_not_keep_a_process_alive() -> None:
    completed = subprocess.run([sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=30)
    assert completed.returncode == 0
    assert "process ends" in completed.stderr


@pytest.mark.full
def test_gateways_stop_while_their_database_is_frozen(tmp_path: Path) -> None:
    """One has one worker, the other two; each waits half a minute, both at once."""
    handmade.write_score(tmp_path / "models")
    with postgres() as server, contextlib.ExitStack() as stack, ThreadPoolExecutor() as callers:
        gateways = {
            workers: stack.enter_context(gateway(server, tmp_path, workers)) for workers in ("1", "2")
        }
        urls = {workers: f"{ready_line(one)[0]}/v1/models/score:decide" for workers, one in gateways.items()}
        assert [patient.post(url, json=ROWS).status_code for url in urls.values()] == [200, 200]
        with server.frozen():
            deciding = [callers.submit(patient.post, url, json=ROWS) for url in urls.values()]
            time.sleep(1)
            began_s = time.monotonic()
            for child in gateways.values():
                child.send_signal(signal.SIGTERM)
            assert [child.wait(PROMISED_S) for child in gateways.values()] == [0, 0]
            assert time.monotonic() - began_s < PROMISED_S
            assert [one.result().status_code for one in deciding] == [503, 503]


def gateway(server: Postgres, folder: Path, workers: str) -> AbstractContextManager[Child]:
    own = folder / workers
    own.mkdir()
    settings = {"RATIONALE_STATE": server.new_schema(), "RATIONALE_ARTIFACTS": f"file://{own}/artifacts"}
    arguments = ("--repository", str(folder / "models"), "--port", "0", "--workers", workers)
    return serve(*arguments, TMPDIR=str(own), **settings)
