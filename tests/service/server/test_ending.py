"""A stop does not wait for what hangs."""

import asyncio
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rationale_service.process.ending import take_steps
from tests.service import handmade, patient
from tests.service.child import ready_line, serve
from tests.service.decisions.audit.postgres import postgres

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
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_gateway_stops_while_its_database_is_frozen(tmp_path: Path, workers: str) -> None:
    handmade.write_score(tmp_path / "models")
    arguments = ("--repository", str(tmp_path / "models"), "--port", "0", "--workers", workers)
    with postgres() as server, ThreadPoolExecutor() as callers:
        url = server.new_schema()
        settings = {"RATIONALE_STATE": url, "RATIONALE_ARTIFACTS": f"file://{tmp_path}/artifacts"}
        with serve(*arguments, TMPDIR=str(tmp_path), **settings) as child:
            decide = f"{ready_line(child)[0]}/v1/models/score:decide"
            assert patient.post(decide, json=ROWS).status_code == 200
            with server.frozen():
                deciding = callers.submit(patient.post, decide, json=ROWS)
                time.sleep(1)
                began_s = time.monotonic()
                child.send_signal(signal.SIGTERM)
                assert child.wait(PROMISED_S) == 0
                assert time.monotonic() - began_s < PROMISED_S
                assert deciding.result().status_code == 503
