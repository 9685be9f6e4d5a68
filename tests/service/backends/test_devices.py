"""Where models run: what `instance_group` and the settings ask for, and what there is.

There is no GPU here: sessions are of the CPU, and say of themselves what a GPU's would.
`test_gpu.py` needs one.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from rationale.errors import InvalidOptionError, RepositoryError
from rationale_service.configuration import load_settings
from rationale_service.engine.backends import devices
from rationale_service.engine.backends.devices import CPU_PROVIDER, CUDA_PROVIDER, Devices, NoGpuError
from rationale_service.repository.entry import Entry, read_entry
from rationale_service.settings import Settings
from tests.service import handmade
from tests.service.conftest import gateway

PAIR = "instance_group [{ count: 1 kind: KIND_GPU gpus: [0] }, { count: 2 kind: KIND_CPU }]"


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> int:
    """So many, as ONNX Runtime and the driver tell it."""
    number: int = request.param
    monkeypatch.setattr(ort, "get_available_providers", lambda: [CUDA_PROVIDER, CPU_PROVIDER])
    monkeypatch.setattr(devices, "_gpus_of_driver", lambda: number)
    return number


class Session:
    """One of the CPU that says it is another one."""

    opened: list[tuple[str, dict[str, str]]] = []  # noqa: RUF012
    bound = 0
    usable = True

    def __init__(self, path: Path, options: Any, providers: Sequence[Any], **_: Any) -> None:
        self._inner = INNER(path, options, providers=[CPU_PROVIDER])
        first = providers[0]
        self._provider, self._options = (first, {}) if isinstance(first, str) else first
        Session.opened.append((self._provider, self._options))

    def get_providers(self) -> list[str]:
        return [self._provider, CPU_PROVIDER] if self.usable else [CPU_PROVIDER]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        return {self._provider: self._options}

    def io_binding(self) -> Any:
        Session.bound += 1
        binding = self._inner.io_binding()
        bind = binding.bind_output
        binding.bind_output = lambda name, device, number: bind(name, {"cuda": "cpu"}[device], 0 * number)
        return binding

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


INNER = ort.InferenceSession


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> type[Session]:
    monkeypatch.setattr(Session, "opened", [])
    monkeypatch.setattr(Session, "bound", 0)
    monkeypatch.setattr(ort, "InferenceSession", Session)
    return Session


def entry_of(folder: Path, groups: str = "") -> Entry:
    handmade.write_score(folder, extra="dynamic_batching {} " + groups)
    return read_entry(folder / "score")


TWO = [2]
GPU, AUTO, ON_CPU = (f"instance_group {{ count: 2 kind: KIND_{kind} }}" for kind in ("GPU", "AUTO", "CPU"))
ITEM = "instance_group { count: 2 kind: KIND_GPU gpus: [1] }"
THIRD = "instance_group { kind: KIND_AUTO gpus: [2] }"


@pytest.mark.parametrize(
    ("gpus", "groups", "expected_value", "expected"),
    [
        (2, "", "auto", ["cuda:0", "cuda:1"]),
        (2, AUTO, "auto", ["cuda:0", "cuda:0", "cuda:1", "cuda:1"]),
        (2, GPU, "auto", ["cuda:0", "cuda:0", "cuda:1", "cuda:1"]),
        (2, ITEM, "auto", ["cuda:1", "cuda:1"]),
        (2, ON_CPU, "auto", ["cpu", "cpu"]),
        (2, PAIR, "auto", ["cuda:0", "cpu", "cpu"]),
        (2, ITEM, "cpu", ["cpu", "cpu"]),
        (2, ON_CPU, "cuda", ["cuda:0", "cuda:0", "cuda:1", "cuda:1"]),
        (0, "", "auto", ["cpu"]),
        (0, AUTO, "auto", ["cpu", "cpu"]),
        (0, GPU, "cpu", ["cpu", "cpu"]),
    ],
    indirect=["gpus"],
)
@pytest.mark.usefixtures("gpus")
def test_where_instances_run(tmp_path: Path, groups: str, expected_value: Any, expected: list[str]) -> None:
    assert list(Devices(expected_value).of(entry_of(tmp_path, groups))) == expected


@pytest.mark.parametrize(
    ("gpus", "groups", "expected", "message"),
    [
        (0, GPU, "auto", "CUDA's driver shows none"),
        (0, "", "cuda", "CUDA's driver shows none"),
        (2, THIRD, "auto", "it needs GPU 2: CUDA's driver shows 2, counted from 0"),
    ],
    indirect=["gpus"],
)
@pytest.mark.usefixtures("gpus")
def test_gpus_that_are_not_there(tmp_path: Path, groups: str, expected: Any, message: str) -> None:
    with pytest.raises(NoGpuError, match=message):
        Devices(expected).of(entry_of(tmp_path, groups))


def test_this_onnxruntime_has_no_cuda(tmp_path: Path) -> None:
    """The build of the tests, without any pretence."""
    with pytest.raises(NoGpuError, match="CUDA: install onnxruntime-gpu"):
        Devices("cuda").of(entry_of(tmp_path))
    assert Devices().of(entry_of(tmp_path / "auto")) == ("cpu",)


@pytest.mark.parametrize("gpus", TWO, indirect=True)
async def test_a_session_on_each_gpu(tmp_path: Path, gpus: int, sessions: type[Session]) -> None:
    """The weights once for each device, whatever the instances; TF32 off; outputs bound to GPU memory."""
    handmade.write_score(tmp_path, extra="dynamic_batching {} " + GPU)
    async with gateway(Settings(repository=tmp_path)) as client:
        cuda = [(CUDA_PROVIDER, {"device_id": str(i), "use_tf32": "0"}) for i in range(gpus)]
        assert sessions.opened == cuda * 2  # the model, and its explanation
        assert (await client.get("/v2")).json()["devices"] == ["cuda:0", "cuda:1"]
        assert (await client.get("/v2/models/score")).json()["devices"] == ["cuda:0", "cuda:1"]
        before = sessions.bound
        answer = await client.post("/v1/models/score:explain", json={"instances": handmade.X.tolist()})
        np.testing.assert_allclose(answer.json()["predictions"], handmade.predict(handmade.X), rtol=1e-6)
        assert sessions.bound > before


@pytest.mark.parametrize("gpus", TWO, indirect=True)
@pytest.mark.usefixtures("gpus")
async def test_the_cpu_and_strings_are_not_bound(tmp_path: Path, sessions: type[Session]) -> None:
    handmade.write_typed(tmp_path)
    handmade.write_score(tmp_path, extra=ON_CPU)
    async with gateway(Settings(repository=tmp_path)) as client:
        text = {"name": "text", "shape": [1, 1], "datatype": "BYTES", "data": ["a"]}
        ids = {"name": "ids", "shape": [1, 2], "datatype": "INT64", "data": [1, 2]}
        assert (await client.get("/v2/models/typed")).json()["devices"] == ["cuda:0", "cuda:1"]
        answer = await client.post("/v2/models/typed/infer", json={"inputs": [ids, text]})
        assert answer.status_code == 200
        answer = await client.post("/v1/models/score:predict", json={"instances": handmade.X.tolist()})
        np.testing.assert_allclose(answer.json()["predictions"], handmade.predict(handmade.X), rtol=1e-6)
        assert (await client.get("/v2/models/score")).json()["devices"] == ["cpu"]
        assert sessions.bound == 0


@pytest.mark.parametrize("gpus", TWO, indirect=True)
@pytest.mark.parametrize("groups", ["", AUTO])
@pytest.mark.usefixtures("gpus")
async def test_cuda_that_cannot_be_used(
    tmp_path: Path,
    groups: str,
    sessions: type[Session],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Such as a cuDNN of another version: ONNX Runtime then leaves CUDA out, and says nothing by itself."""
    monkeypatch.setattr(sessions, "usable", False)
    handmade.write_score(tmp_path, extra=groups or "dynamic_batching {}")
    async with gateway(Settings(repository=tmp_path)) as client:
        assert (await client.get("/v2")).json()["devices"] == ["cpu"]
    assert "entry score runs on the CPU: " in caplog.text


async def test_what_asks_for_a_gpu_is_not_served_without_one(tmp_path: Path) -> None:
    handmade.write_score(tmp_path)
    handmade.write_score(tmp_path, "fast", extra=GPU)
    async with gateway(Settings(repository=tmp_path)) as client:
        assert (await client.get("/v2/models/score/ready")).status_code == 200
        assert (await client.get("/v2/models/fast/ready")).status_code == 503
        items = (await client.post("/v2/repository/index")).json()
        (reason,) = (item["reason"] for item in items if item["name"] == "fast")
        assert reason.startswith("fast/1/model.onnx: it needs a GPU, and this onnxruntime has no CUDA")
        assert "KIND_AUTO or KIND_CPU" in reason
        assert "RATIONALE_CPU_FALLBACK=true" in reason


async def test_a_gateway_of_gpus_does_not_start_without_one(tmp_path: Path) -> None:
    handmade.write_score(tmp_path)
    with pytest.raises(RepositoryError, match="no CUDA"):
        async with gateway(Settings(repository=tmp_path, device="cuda")):
            pass


async def test_it_runs_on_the_cpu_where_that_is_allowed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    handmade.write_score(tmp_path, extra=GPU)
    async with gateway(Settings(repository=tmp_path, cpu_fallback=True)) as client:
        assert (await client.get("/v2/models/score")).json()["devices"] == ["cpu"]
    assert "entry score runs on the CPU: it needs a GPU" in caplog.text


def test_a_device_that_is_none() -> None:
    with pytest.raises(InvalidOptionError, match=r"setting device \(RATIONALE_DEVICE\)"):
        load_settings({"device": "tpu"})
    with pytest.raises(InvalidOptionError, match="instance_group says where"):
        load_settings({"device": "cuda", "triton": "localhost:8001"})
