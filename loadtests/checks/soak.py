"""A day in ten minutes: mixed load while explainers are published and dropped.

    python -m loadtests.checks.soak [--minutes 10] [--out loadtests/results/soak]

locust sends predictions and explanations, as JSON, binary and over gRPC, at a fixed rate regardless of
answers (open load); every few seconds a reference set is uploaded, baked, asked and deleted with all its
explainers. Every answer is checked. The gateway's memory is read each second. Writes soak.json;
ends with 1 if an answer was wrong, a request got no answer, or the memory of the last third lies above that
of the middle one.
"""

import argparse
import io
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.timing import memory_bytes
from loadtests.load.expected import ATTRIBUTIONS, BASE, EXPECTED, EXPLAINED, INPUT, OUTPUT, write_expected
from loadtests.load.locust import LocustSummary, run_locust
from loadtests.systems.models import FEATURES, NETWORK, session, write_network
from loadtests.systems.process import Server, gateway

WIDTH, REFERENCES = 128, 50
RATE_HZ = 60.0
FORMS = ("JsonUser", "BinaryUser", "GrpcUser")
KEPT_EXPLAINERS = 2  # explainers beside the compiled one; more are dropped again
BETWEEN_S = 5.0
TOLERANCE = 2e-4  # for the sum of a float32 explanation
GROWTH = 0.03  # of the memory in the last third over that in the middle one


@dataclass(frozen=True)
class SoakReport:
    """The results of a soak; `growth` is that of the memory in the last third over that in the middle one."""

    minutes: float
    requests: int
    errors: dict[str, int]
    published: int
    admin_faults: list[str]
    p50_ms: float
    p99_ms: float
    memory_mb: list[float]
    growth: float

    @property
    def failed(self) -> bool:
        """True for a wrong answer, a lost one, a failed publication, or memory that grows."""
        return bool(self.errors or self.admin_faults) or self.growth > GROWTH


def write_workload(folder: Path) -> None:
    """Write rows, and the model's own answers; attributions change with the explainers, but add up."""
    repository = folder / "repository"
    write_network(repository, width=WIDTH, references=REFERENCES)
    rows = np.random.default_rng(0).normal(size=(16, FEATURES)).astype(np.float32)
    (answer,) = session(repository, NETWORK).run([OUTPUT], {INPUT: rows})
    write_expected(folder / EXPECTED, rows, {OUTPUT: answer}, TOLERANCE)


class Publisher:
    """A client that uploads a set, bakes it, asks it, and drops the oldest with its set: over and over."""

    def __init__(self, http: str) -> None:
        self._client = httpx.Client(base_url=f"http://{http}", timeout=60)
        self._names: list[str] = []
        self.published = 0
        self.faults: list[str] = []

    def run(self, end_s: float) -> None:
        """Publish until `end_s` of the monotonic clock."""
        number = 0
        while time.monotonic() < end_s:
            try:
                self._publish(f"soak-{number}", number)
                if len(self._names) > KEPT_EXPLAINERS:
                    oldest = self._names.pop(0)
                    self._request("DELETE", f"/v2/models/{NETWORK}/explainers/{oldest}")
                    self._request("DELETE", f"/v2/reference-sets/{oldest}")
            except (httpx.HTTPError, RuntimeError) as error:
                self.faults.append(f"soak-{number}: {error!r}"[:300])
            number += 1
            time.sleep(max(min(BETWEEN_S, end_s - time.monotonic()), 0))
        self._client.close()

    def _publish(self, name: str, number: int) -> None:
        rows, file = np.random.default_rng(number).normal(size=(REFERENCES, FEATURES)), io.BytesIO()
        np.savez(file, x=rows.astype(np.float32))
        headers = {"Content-Type": "application/x-npz"}
        path = f"/v2/reference-sets/{name}?model={NETWORK}"
        self._request("PUT", path, content=file.getvalue(), headers=headers)
        path = f"/v2/models/{NETWORK}/explainers/{name}"
        spec = {"method": "deepshap", "reference_set": name, "default": number % 2 == 0}
        self._request("PUT", path, json=spec)
        while (status := self._request("GET", path))["state"] not in ("ready", "failed"):
            time.sleep(0.1)
        if status["state"] == "failed":
            raise RuntimeError(str(status["error"]))
        self._names.append(name)
        self.published += 1
        self._explain(name)

    def _explain(self, name: str) -> None:
        tensor = {"name": INPUT, "datatype": "FP32", "shape": [1, FEATURES], "data": [0.5] * FEATURES}
        request = {"inputs": [tensor], "parameters": {"explainer": name}}
        answer = self._request("POST", f"/v2/models/{NETWORK}/explain", json=request)
        outputs = {each["name"]: np.reshape(each["data"], each["shape"]) for each in answer["outputs"]}
        total = outputs[BASE] + outputs[ATTRIBUTIONS].sum(axis=-1)
        if not np.allclose(total, outputs[EXPLAINED], rtol=0, atol=TOLERANCE):
            raise RuntimeError(f"attributions end at {total}, not at {outputs[EXPLAINED]}")

    def _request(self, method: str, path: str, **options: Any) -> Any:
        response = self._client.request(method, path, **options)
        if response.status_code >= httpx.codes.BAD_REQUEST:
            raise RuntimeError(f"{method} {path}: {response.text[:200]}")
        return response.json() if response.content else None


def soak(server: Server, folder: Path, minutes: float) -> SoakReport:
    """Run the load and the publisher side by side; read the memory every second."""
    begun_s = time.monotonic()
    end_s, memory = begun_s + minutes * 60, [memory_bytes(server.pid)]
    options = {"--rate": RATE_HZ, "--run-time": round(minutes * 60), "--users": len(FORMS)}
    publisher = Publisher(server.http)
    with ThreadPoolExecutor(2) as threads:
        seen, published = (
            threads.submit(run_locust, server, folder / EXPECTED, options, *FORMS),
            threads.submit(publisher.run, end_s),
        )
        while (now_s := time.monotonic()) < end_s:
            memory.append(memory_bytes(server.pid))
            say(f"\r{now_s - begun_s:5.0f} s  {memory[-1] >> 20} MiB  {publisher.published} published  ")
            time.sleep(1)
        published.result()
        say("\n")
        return report(minutes, seen.result(), publisher, [round(value / (1 << 20), 1) for value in memory])


def report(
    minutes: float, seen: LocustSummary, publisher: Publisher, memory_mb: Sequence[float]
) -> SoakReport:
    """Return all results, as plain values."""
    thirds = len(memory_mb) // 3
    middle, last = (statistics.median(memory_mb[i * thirds : (i + 1) * thirds]) for i in (1, 2))
    return SoakReport(
        minutes=minutes,
        requests=seen.requests,
        errors=seen.errors,
        published=publisher.published,
        admin_faults=publisher.faults[:20],
        p50_ms=seen.p50_ms,
        p99_ms=seen.p99_ms,
        memory_mb=list(memory_mb),
        growth=round(last / middle - 1, 4),
    )


def say(text: str) -> None:
    print(text, end="", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10, help="duration in minutes (default: 10)")
    parser.add_argument(
        "--out", type=Path, default=Path("loadtests/results/soak"), help="folder for the results"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        write_workload(Path(name))
        with gateway(Path(name) / "repository") as server:
            result = soak(server, Path(name), options.minutes)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "soak.json").write_text(json.dumps(asdict(result), indent=1) + "\n")
    shown = {name: value for name, value in asdict(result).items() if name != "memory_mb"}
    print(json.dumps(shown, indent=1))
    print(f"{'failed' if result.failed else 'passed'}; written to {options.out}")
    return int(result.failed)


if __name__ == "__main__":
    sys.exit(main())
