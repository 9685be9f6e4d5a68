"""The compile worker: held to its limits, ended at any point, and never the gateway's trouble."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rationale.schema.request import CompileRequest
from rationale_service.errors import CompileFailedError, UnknownResourceError
from rationale_service.models.explainers.builder import Progress, compile_entry
from rationale_service.models.explainers.worker import CompileOrder
from rationale_service.repository.entry import read_entry
from tests.compiler.packages import Packages, packages
from tests.service.explaining import write_plain

__all__ = ["packages"]  # a fixture, found by its name

ENOUGH = 4 << 30
LONG_S = 300
STEPS = CompileRequest(method="integrated-gradients", options={"steps": 20}, targets="all")


@pytest.fixture
def order(tmp_path: Path) -> CompileOrder:
    write_plain(tmp_path / "models")
    return CompileOrder(
        model=str(tmp_path / "models" / "score" / "1" / "model.onnx"),
        name="score",
        entry=str(tmp_path / "staging" / "score_explain_1"),
        request=STEPS.model_dump(mode="json"),
        references=None,
        memory_bytes=ENOUGH,
    )


def workers() -> list[int]:
    """Processes of this one's that compile."""
    pids = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    return [int(pid) for pid in pids if b"rationale_service.models.explainers.worker" in command_of(int(pid))]


def command_of(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


async def test_it_tells_how_far_it_is_and_writes_a_sound_entry(order: CompileOrder) -> None:
    steps: list[Progress] = []
    size = await compile_entry(order, LONG_S, steps.append)
    assert {"loading and lowering", "checking against the original", "writing"} <= {p.stage for p in steps}
    entry = read_entry(Path(order.entry))
    assert entry.manifest is not None
    assert entry.manifest.method.name == "integrated-gradients"
    assert size == sum(p.stat().st_size for p in Path(order.entry).rglob("*") if p.is_file())
    assert workers() == []


async def test_a_reference_set_that_is_gone_is_told_from_a_refusal(
    order: CompileOrder, tmp_path: Path
) -> None:
    request = CompileRequest(method="deepshap", targets="all").model_dump(mode="json")
    with pytest.raises(UnknownResourceError, match=r"^the reference set: .*such file"):
        await compile_entry(
            replace(order, request=request, references=str(tmp_path / "gone.npz")), LONG_S, lambda _: None
        )


@pytest.mark.full
async def test_it_knows_the_rules_of_installed_packages(
    order: CompileOrder, packages: Packages, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages.install_absolute()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(packages.folder), *sys.path]))
    rules = ["MatMul=absolute:0.2", "first=absolute(epsilon=0.1)"]
    compile_request = CompileRequest(method="lrp", options={"rule": rules}, targets="all").model_dump(
        mode="json"
    )
    await compile_entry(replace(order, request=compile_request), LONG_S, lambda _: None)
    manifest = read_entry(Path(order.entry)).manifest
    assert manifest is not None
    assert manifest.method.options["rules"] == [["MatMul", "absolute:0.2"], ["first", "absolute:0.1"]]
    assert [str(extension) for extension in manifest.extensions] == ["absolute of example-rules 1.2"]


@pytest.mark.full
async def test_what_the_compiler_refuses_is_told(order: CompileOrder, tmp_path: Path) -> None:
    np.savez(tmp_path / "wide.npz", x=np.ones((2, 5)))
    wide = replace(
        order, request=CompileRequest().model_dump(mode="json"), references=str(tmp_path / "wide.npz")
    )
    with pytest.raises(CompileFailedError, match=r"have shape \[2, 5\]"):
        await compile_entry(wide, LONG_S, print)
    Path(order.model).write_bytes(b"no model")
    with pytest.raises(CompileFailedError, match="ONNX") as refused:
        await compile_entry(order, LONG_S, print)
    assert str(tmp_path) not in str(refused.value)


@pytest.mark.full
@pytest.mark.parametrize(
    "stage",
    [
        "start",
        "checking against the original",
        pytest.param("loading and lowering", marks=pytest.mark.slow),
        pytest.param("writing", marks=pytest.mark.slow),
    ],
)
async def test_killed_at_any_point(order: CompileOrder, stage: str) -> None:
    def kill(progress: Progress | None = None) -> None:
        if progress is None or progress.stage == stage:
            for pid in workers():
                os.kill(pid, signal.SIGKILL)

    job = asyncio.create_task(compile_entry(order, LONG_S, kill))
    while stage == "start" and not workers():
        await asyncio.sleep(0.001)
    if stage == "start":
        kill()
    with pytest.raises(CompileFailedError, match=r"SIGKILL; nothing .*changed"):
        await job
    assert workers() == []


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"timeout_s": 0.05}, "longer than 0.05 s"),
        ({"memory_bytes": 64 << 20}, "more than the 64 MB of memory"),
    ],
)
async def test_held_to_its_limits(order: CompileOrder, limits: dict[str, Any], reason: str) -> None:
    timeout_s = limits.pop("timeout_s", LONG_S)
    with pytest.raises(CompileFailedError, match=reason):
        await compile_entry(replace(order, **limits), timeout_s, print)
    assert workers() == []
    assert not Path(order.entry).exists()


async def test_whoever_cancels_waits_for_its_end(order: CompileOrder) -> None:
    job = asyncio.create_task(compile_entry(order, LONG_S, print))
    while not workers():
        await asyncio.sleep(0.001)
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    assert workers() == []


@pytest.mark.full
async def test_given_up_it_ends_at_once(order: CompileOrder) -> None:
    def give_up(_: Progress) -> None:
        job.cancel()

    job = asyncio.create_task(compile_entry(order, LONG_S, give_up))
    with pytest.raises(asyncio.CancelledError):
        await job
    assert not Path(order.entry).exists()


async def test_a_failed_start_is_told(order: CompileOrder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(CompileFailedError, match="server's log"):
        await compile_entry(order, LONG_S, print)


@pytest.mark.full
def test_it_ends_with_its_gateway(order: CompileOrder) -> None:
    """Killed with -9, the gateway cannot end it."""
    code = f"""
import asyncio
from rationale_service.models.explainers.builder import compile_entry
from rationale_service.models.explainers.worker import CompileOrder
order = CompileOrder(**{asdict(order)!r})
asyncio.run(compile_entry(order, {LONG_S}, lambda progress: print(progress.stage, flush=True)))
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as gateway:
        assert gateway.stdout
        gateway.stdout.readline()
        (worker,) = map(int, Path(f"/proc/{gateway.pid}/task/{gateway.pid}/children").read_text().split())
        os.kill(worker, signal.SIGSTOP)  # so that it is still there
        gateway.kill()
        gateway.wait()
        os.kill(worker, signal.SIGCONT)
        end_s = time.monotonic() + 60
        while b"worker" in command_of(worker):
            assert time.monotonic() < end_s
            time.sleep(0.01)
    assert not Path(order.entry).exists() or not (Path(order.entry) / "explanation.json").exists()
