"""The embedded backend under concurrent clients, over real connections."""

import asyncio
import gc
import math
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import onnxruntime as ort
import pytest

from rationale_service.app import create_backend
from rationale_service.engine.backends import onnxruntime as embedded
from rationale_service.errors import NotReadyError, QueueFullError
from rationale_service.repository.registry import read_repository
from rationale_service.settings import Settings
from tests.service import handmade

EXTRA = "dynamic_batching { max_queue_delay_microseconds: 3000 }"


async def test_sixty_callers_at_once_each_get_their_own_rows(address: str) -> None:
    generator = np.random.default_rng(11)
    batches = [generator.normal(size=(1 + i % 5, 4)).astype(np.float32) for i in range(60)]

    async with httpx.AsyncClient(base_url=f"http://{address}", timeout=60) as client:

        async def ask(x: np.ndarray) -> list:
            answer = await client.post("/v2/models/score/explain", json=body(x))
            assert answer.status_code == 200, answer.text
            return answer.json()["outputs"]

        answers = await asyncio.gather(*map(ask, batches))
    for x, (y, attributions, *_) in zip(batches, answers, strict=True):
        np.testing.assert_allclose(y["data"], handmade.predict(x).ravel(), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(attributions["data"], handmade.attribute(x).ravel(), rtol=1e-4, atol=1e-5)


def body(x: np.ndarray) -> dict:
    return {"inputs": [{"name": "x", "shape": list(x.shape), "datatype": "FP32", "data": x.ravel().tolist()}]}


@pytest.mark.parametrize(("own", "setting", "most"), [(2, 5, 2), (5, 2, 5), (None, 3, 3)])
async def test_as_many_wait_for_an_entry_as_its_config_says(
    tmp_path: Path, own: int | None, setting: int, most: int
) -> None:
    """Else as the setting says; beside those that wait, one may run at once."""
    policy = f"default_queue_policy {{ max_queue_size: {own} }}" if own else ""
    handmade.write_score(tmp_path, extra=f"dynamic_batching {{ {policy} }}")
    entry = read_repository(tmp_path).entry("score")
    backend = create_backend(Settings(repository=tmp_path, max_queue_size=setting))
    await backend.start([entry])
    calls = (backend.infer(entry, {"x": handmade.X[:1]}, ["y"]) for _ in range(9))
    answers = await asyncio.gather(*calls, return_exceptions=True)
    refused = [answer for answer in answers if isinstance(answer, QueueFullError)]
    assert len(answers) - len(refused) in (most, most + 1)
    await backend.stop()


@pytest.mark.parametrize("runs", [0, 1, 40])
async def test_an_unloaded_entry_gives_its_memory_back_at_once(tmp_path: Path, runs: int) -> None:
    """Not when the garbage collector runs: a gateway's does so rarely, and sessions hold large models."""
    handmade.write_score(tmp_path)
    entry = read_repository(tmp_path).entry("score")
    backend = create_backend(Settings(repository=tmp_path))
    await backend.start([entry])
    await asyncio.gather(*(backend.infer(entry, {"x": handmade.X}, ["y"]) for _ in range(runs)))
    await asyncio.sleep(0)  # the turn of the event loop in which it was loaded refers to it
    gc.collect()
    gc.disable()
    try:
        before = sessions()
        await backend.unload(entry)
        assert sessions() == before - 1
    finally:
        gc.enable()


def sessions() -> int:
    return sum(isinstance(each, ort.InferenceSession) for each in gc.get_objects())


async def test_concurrent_rows_share_runs_and_stay_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handmade.write_score(tmp_path, extra=EXTRA)
    entry = read_repository(tmp_path).entry("score")
    backend = create_backend(Settings(repository=tmp_path))
    sizes = []
    run = embedded.run

    def counted(entry, session, inputs, outputs):
        sizes.append(len(inputs["x"]))
        return run(entry, session, inputs, outputs)

    monkeypatch.setattr(embedded, "run", counted)
    await backend.start([entry])
    answers = await asyncio.gather(
        *(backend.infer(entry, {"x": handmade.X[i : i + 1]}, ["y"]) for i in range(5))
    )
    np.testing.assert_allclose(
        np.concatenate([a["y"] for a in answers]), handmade.predict(handmade.X), rtol=1e-6
    )
    assert sizes == [4, 1]
    await backend.stop()
    assert not await backend.ready()


async def test_the_runtime_is_recorded_when_an_entry_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sessions keep the kernels that they took."""
    handmade.write_score(tmp_path)
    entry = read_repository(tmp_path).entry("score")
    backend = create_backend(Settings(repository=tmp_path, device="cpu"))
    monkeypatch.setattr(embedded, "kernels_version", lambda: "9")
    await backend.start([entry])
    monkeypatch.setattr(embedded, "kernels_version", lambda: None)
    assert backend.runtime(entry)["kernels"] == "9"
    await backend.unload(entry)
    assert "kernels" not in backend.runtime(entry)
    await backend.stop()


def test_cores_are_divided_by_instances(tmp_path: Path) -> None:
    for count, threads in ((1, 8), (3, 2), (20, 1)):
        folder = tmp_path / str(count)
        handmade.write_score(folder, extra=f"instance_group {{ count: {count} }}")
        options = embedded.session_options(read_repository(folder).entry("score"), cores=8)
        assert options.intra_op_num_threads == threads


@pytest.mark.parametrize(("nodes", "planned"), [(3_000, True), (3_001, False)])
def test_a_graph_of_many_nodes_is_loaded_without_a_search_for_buffers(
    tmp_path: Path, nodes: int, planned: bool
) -> None:
    handmade.write_all(tmp_path)
    entry = read_repository(tmp_path).entry("score_explain")
    assert entry.manifest is not None
    measured = entry.manifest.measured.model_copy(update={"nodes": nodes})
    large = replace(entry, manifest=entry.manifest.model_copy(update={"measured": measured}))
    assert embedded.session_options(large, cores=1).enable_mem_reuse == planned


async def test_an_entry_read_again_is_loaded_beside_the_one_that_serves(tmp_path: Path) -> None:
    """What was accepted is answered by the entry that accepted it; what comes after an unload is refused."""
    handmade.write_score(tmp_path)
    old = read_repository(tmp_path).entry("score")
    new = read_repository(tmp_path).entry("score")
    backend = create_backend(Settings(repository=tmp_path))
    await backend.start([old])
    assert not await backend.ready(new)
    await backend.load(new)
    accepted = asyncio.create_task(backend.infer(old, {"x": handmade.X}, ["y"]))
    await asyncio.sleep(0)
    await backend.unload(old)
    np.testing.assert_allclose((await accepted)["y"], handmade.predict(handmade.X), rtol=1e-6)
    with pytest.raises(NotReadyError, match=r"'score'.* loaded"):
        await backend.infer(old, {"x": handmade.X}, ["y"])
    await backend.unload(old)
    answer = await backend.infer(new, {"x": handmade.X}, ["y"])
    np.testing.assert_allclose(answer["y"], handmade.predict(handmade.X), rtol=1e-6)
    await backend.stop()


WARMUP = """ model_warmup { name: "one" batch_size: 1 inputs { key: "x"
    value { data_type: TYPE_FP32 dims: 4 zero_data: true } } }"""


@pytest.mark.parametrize(
    ("extra", "sizes"),
    [
        ("dynamic_batching {}" + WARMUP, [1, 1, 2, 2, 4, 4, 6, 6]),
        ("" + WARMUP, [1, 1, 6, 6]),
        ("dynamic_batching {}", []),
    ],
)
async def test_every_size_that_will_be_seen_is_warmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extra: str, sizes: list[int]
) -> None:
    handmade.write_score(tmp_path, extra=extra, max_batch_size=6)
    entry = read_repository(tmp_path).entry("score")
    seen = []
    run = embedded.run
    monkeypatch.setattr(embedded, "_LONG_WARMUP_S", math.inf)  # however long it takes on a busy machine

    def counted(entry, session, inputs, outputs):
        seen.append(len(inputs["x"]))
        return run(entry, session, inputs, outputs)

    monkeypatch.setattr(embedded, "run", counted)
    backend = create_backend(Settings(repository=tmp_path))
    await backend.start([entry])
    assert seen == sizes
    await backend.stop()


async def test_a_size_that_takes_long_is_the_last_that_is_warmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "_LONG_WARMUP_S", 0)
    handmade.write_score(tmp_path, extra="dynamic_batching {}" + WARMUP)
    timed = embedded.load_warmed(read_repository(tmp_path).entry("score")).timed
    assert [rows for rows, _ in timed] == [1]
    assert timed[0][1] > 0
