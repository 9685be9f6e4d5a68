"""Checks of a gateway whose dependencies are killed, frozen or cut off.

    python -m loadtests.checks.dependencies [--faults killed frozen] [--only Redis] [--at-once 4]

Each row is a gateway of its own under light traffic: its answers half a minute later, its `GET /metrics`,
the alerts of docs/alerts.yml that fire, and the time it takes to stop after SIGTERM while requests are in
progress. Frozen is SIGSTOP, cut off is iptables' DROP, which needs root. Ends with 1 if a fault shows in no
metric or no alert, or a stop takes longer than 40 s.
"""

import argparse
import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import jwt
import psutil
import yaml
from cryptography.hazmat.primitives.asymmetric import rsa
from prometheus_client.parser import text_string_to_metric_families

from scripts.triton.serve import run_triton
from tests.needs import need
from tests.service import handmade as made
from tests.service.child import Child, ready_line, serve, spare_ports
from tests.service.decisions.audit.postgres import postgres
from tests.service.state.cluster import BUCKET, S3

ALERTS = Path(__file__).parents[2] / "docs" / "alerts.yml"
PROMISED_S = 40.0
OBSERVED_S = 30.0
_SCRAPES = 8  # while the fault lasts
_EVERY_S = 0.5
_PATIENCE_S = 60.0
_READY = "/v2/health/ready"
FAULTS = ("killed", "frozen", "cut off")
ROWS = {"instances": [dict(zip(made.FEATURES, row, strict=True)) for row in made.X.tolist()]}
LOCKED = "import sqlite3, sys, time; c = sqlite3.connect(sys.argv[1], isolation_level=None); "
LOCKED += "c.execute('BEGIN IMMEDIATE'); print(flush=True); time.sleep(600)"
COLLECTOR = """
import sys, threading
from concurrent.futures import ThreadPoolExecutor
import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as messages
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as services

class Collector(services.TraceServiceServicer):
    def Export(self, request, context):
        return messages.ExportTraceServiceResponse()

server = grpc.server(ThreadPoolExecutor(2))
services.add_TraceServiceServicer_to_server(Collector(), server)
server.add_insecure_port(f"127.0.0.1:{sys.argv[1]}")
server.start()
threading.Event().wait()
"""


@dataclass
class RunningDependency:
    """A dependency that is up, and a gateway's settings to use it.

    Attributes:
        port: its port on 127.0.0.1; None if it is not reached by one.
        processes: processes to kill or freeze.
        sent: headers of each request.
        use: a function that sends a request that needs it, if predictions and decisions do not.
        cut_off: a function that cuts it off other than by the port, and returns one that undoes this.
    """

    settings: dict[str, str]
    port: int | None
    processes: Callable[[], Sequence[psutil.Process]]
    repository: str | None = None
    arguments: tuple[str, ...] = ()
    sent: dict[str, str] = field(default_factory=dict)
    use: Callable[[str], object] = lambda _: None
    cut_off: Callable[[], Callable[[], object]] | None = None


@dataclass(frozen=True)
class Dependency:
    """A dependency of a gateway.

    Attributes:
        run: a function that starts it for a folder; the stack ends it.
        metric: the name and labels of the metric that rises.
        survives: faults that leave nothing to report.
    """

    name: str
    run: Callable[[Path, contextlib.ExitStack], RunningDependency]
    metric: str
    survives: tuple[str, ...] = ()


@dataclass(frozen=True)
class FaultReport:
    dependency: str
    fault: str
    server: str
    model: str
    prediction: str
    decision: str
    metric: str
    alerts: str
    stop_s: float
    is_good: bool

    def cells(self) -> tuple[str, ...]:
        texts = (self.server, self.model, self.prediction, self.decision, self.metric, self.alerts)
        return (self.dependency, self.fault, *texts, f"{self.stop_s:.1f} s")


HEAD = (
    "dependency", "fault", "server ready", "model that decides ready", "prediction", "decision", "metric",
    "alerts", "stop",
)  # fmt: skip


# --- what it depends on -----------------------------------------------------------------------------------


def _process(stack: contextlib.ExitStack, *command: str, port: int | None = None) -> psutil.Process:
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)  # noqa: S603 (ours)
    stack.callback(child.communicate)
    stack.callback(child.kill)
    end_s = time.monotonic() + _PATIENCE_S
    while port is not None and not _listens(port):
        if time.monotonic() > end_s:
            raise RuntimeError(f"{command[0]} does not listen on {port}")
        time.sleep(0.05)
    if port is None:
        child.stdout.readline()  # type: ignore[union-attr]  # it is a pipe
    return psutil.Process(child.pid)


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def _audit_in_postgres(_: Path, stack: contextlib.ExitStack) -> RunningDependency:
    (port,) = spare_ports(1)
    server = stack.enter_context(postgres(port))
    return RunningDependency({"RATIONALE_AUDIT": server.new_schema()}, port, server.processes)


def _state_in_postgres(folder: Path, stack: contextlib.ExitStack) -> RunningDependency:
    (port,) = spare_ports(1)
    server = stack.enter_context(postgres(port))
    settings = {
        "RATIONALE_STATE": server.new_schema(),
        "RATIONALE_ARTIFACTS": f"file://{folder}/artifacts",
        "RATIONALE_AUDIT": f"sqlite:///{folder}/audit.sqlite3",
    }
    return RunningDependency(settings, port, server.processes)


def _audit_in_sqlite(folder: Path, stack: contextlib.ExitStack) -> RunningDependency:
    """Let another process hold the lock, which ends with that process; cut off: the folder is gone."""
    trail, aside = folder / "trail", folder / "aside"
    file = trail / "audit.sqlite3"

    def holder() -> Sequence[psutil.Process]:
        return [_process(stack, sys.executable, "-c", LOCKED, str(file))]

    def cut_off() -> Callable[[], object]:
        trail.rename(aside)
        trail.write_text("in the way")
        return lambda: None

    return RunningDependency({"RATIONALE_AUDIT": f"sqlite:///{file}"}, None, holder, cut_off=cut_off)


def _redis(folder: Path, stack: contextlib.ExitStack) -> RunningDependency:
    (port,) = spare_ports(1)
    server = _process(
        stack, need("Redis"), "--port", str(port), "--save", "", "--dir", str(folder), port=port
    )
    settings = {
        "RATIONALE_RATE_LIMIT_PER_S": "1000",
        "RATIONALE_RATE_LIMIT_STORAGE": f"redis://127.0.0.1:{port}",
    }
    return RunningDependency(settings, port, lambda: [server])


def _bucket(stack: contextlib.ExitStack) -> tuple[int, psutil.Process, S3]:
    (port,) = spare_ports(1)
    server = _process(stack, sys.executable, "-m", "moto.server", "-p", str(port), port=port)
    storage = S3(f"http://127.0.0.1:{port}")
    storage.client().create_bucket(Bucket=BUCKET)
    return port, server, storage


def _artifacts_in_a_bucket(_: Path, stack: contextlib.ExitStack) -> RunningDependency:
    port, server, storage = _bucket(stack)
    numbers = itertools.count()

    def put(url: str) -> None:
        rows = made.X[:3] + next(numbers)
        table = "\n".join([",".join(made.FEATURES), *(",".join(map(str, row)) for row in rows.tolist())])
        headers = {"Content-Type": "text/csv"}
        address = f"{url}/v2/reference-sets/set{next(numbers)}?model=score"
        httpx.put(address, content=table, headers=headers, timeout=_PATIENCE_S)  # noqa: TID251 (it has a timeout)

    settings = {"RATIONALE_ARTIFACTS": f"s3://{BUCKET}/artifacts", **storage.environment}
    return RunningDependency(settings, port, lambda: [server], use=put)


def _repository_in_a_bucket(folder: Path, stack: contextlib.ExitStack) -> RunningDependency:
    port, server, storage = _bucket(stack)
    models = folder / "models"
    for file in models.rglob("*"):
        if file.is_file():
            name = f"models/{file.relative_to(models)}"
            storage.client().put_object(Bucket=BUCKET, Key=name, Body=file.read_bytes())
    settings = {"RATIONALE_STATE": str(folder / "state"), **storage.environment}
    repository = f"s3://{BUCKET}/models"
    return RunningDependency(settings, port, lambda: [server], repository, ("--watch", "1"))


def _token_keys(folder: Path, stack: contextlib.ExitStack) -> RunningDependency:
    """Send tokens with a known key; one request has another key, and the gateway asks the provider for it."""
    (port,) = spare_ports(1)
    key = rsa.generate_private_key(65537, 2048)
    public_key = jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    (folder / "keys").mkdir()
    keys = {"keys": [{**public_key, "kid": "known", "use": "sig"}]}
    (folder / "keys" / "jwks.json").write_text(json.dumps(keys))
    server = _process(
        stack, sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1", "--directory",
        str(folder / "keys"), port=port,
    )  # fmt: skip
    claims = {
        "iss": "https://id.test", "aud": "rationale", "sub": "caller", "scope": "infer explain decide",
        "exp": int(time.time()) + 3600,
    }  # fmt: skip

    def bearer(kid: str) -> dict[str, str]:
        return {"authorization": f"Bearer {jwt.encode(claims, key, 'RS256', {'kid': kid})}"}

    def use(url: str) -> None:
        _ask(url, "predict", bearer("another"))

    settings = {
        "RATIONALE_JWT_ISSUER": "https://id.test",
        "RATIONALE_JWT_AUDIENCE": "rationale",
        "RATIONALE_JWT_KEYS": f"http://127.0.0.1:{port}/jwks.json",
    }
    return RunningDependency(settings, port, lambda: [server], sent=bearer("known"), use=use)


def _collector(_: Path, stack: contextlib.ExitStack) -> RunningDependency:
    (port,) = spare_ports(1)
    server = _process(stack, sys.executable, "-c", COLLECTOR, str(port), port=port)
    return RunningDependency({"RATIONALE_TRACE_ENDPOINT": f"http://127.0.0.1:{port}"}, port, lambda: [server])


def _triton(folder: Path, stack: contextlib.ExitStack) -> RunningDependency:
    triton = stack.enter_context(run_triton(folder / "models", timeout_s=5 * _PATIENCE_S))
    server, port = psutil.Process(triton.pid), int(triton.grpc.rpartition(":")[2])

    def processes() -> Sequence[psutil.Process]:
        return [server, *server.children(recursive=True)]

    return RunningDependency(
        {"RATIONALE_TRITON": triton.grpc}, port, processes, use=lambda url: _status(url + _READY)
    )


def _failures(name: str) -> str:
    return f'rationale_dependency_failures_total{{dependency="{name}"}}'


DEPENDENCIES = (
    Dependency("PostgreSQL: audit trail", _audit_in_postgres, "rationale_audit_unavailable"),
    Dependency("SQLite: audit trail", _audit_in_sqlite, "rationale_audit_unavailable", ("killed",)),
    Dependency("PostgreSQL: state", _state_in_postgres, _failures("state")),
    Dependency("Redis: rates", _redis, _failures("rates")),
    Dependency("bucket: artifacts", _artifacts_in_a_bucket, _failures("artifacts")),
    Dependency("bucket: repository", _repository_in_a_bucket, _failures("repository")),
    Dependency("identity provider: keys", _token_keys, _failures("tokens")),
    Dependency("collector: traces", _collector, _failures("traces")),
    Dependency("Triton", _triton, _failures("triton")),
)


# --- what befalls them ------------------------------------------------------------------------------------


@contextlib.contextmanager
def befallen(running: RunningDependency, fault: str) -> Iterator[None]:
    with contextlib.ExitStack() as undone:
        if fault == "cut off":
            undo = _dropped(running.port) if running.cut_off is None else running.cut_off()
            undone.callback(undo)
        else:
            processes = running.processes()
            for process in processes:
                process.send_signal(signal.SIGKILL if fault == "killed" else signal.SIGSTOP)
                undone.callback(_go_on, process)
        yield


def _go_on(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(signal.SIGCONT)


def _dropped(port: int | None) -> Callable[[], object]:
    """Have the kernel drop packets to and from a port of this machine."""

    def each(action: str) -> None:
        for end in ("--dport", "--sport"):
            rule = (action, "INPUT", "-i", "lo", "-p", "tcp", end, str(port), "-j", "DROP")
            subprocess.run(["iptables", "-w", *rule], check=True)  # noqa: S603, S607 (iptables, ours)

    each("-I")
    return lambda: each("-D")


# --- a row ------------------------------------------------------------------------------------------------


def measure(dependency: Dependency, fault: str) -> FaultReport:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="depends-")))
        made.write_score(folder / "models")
        running = dependency.run(folder, stack)
        repository = running.repository or str(folder / "models")
        arguments = ("--repository", repository, "--port", "0", "--grpc-port", "off", *running.arguments)
        environment = {"TMPDIR": str(folder), "RATIONALE_LOG_FORMAT": "plain", **running.settings}
        child = stack.enter_context(serve(*arguments, **environment))
        url, _ = ready_line(child)
        callers = ThreadPoolExecutor(200)
        stack.callback(callers.shutdown, wait=False, cancel_futures=True)
        for verb in ("predict", "decide"):
            status, _ = _ask(url, verb, running.sent)
            if status != "200":
                raise RuntimeError(f"{dependency.name}: {verb} is answered {status} before anything happens")
        running.use(url)
        scrapes = [_scrape(url)] * 2
        with befallen(running, fault):
            observed = _observed(url, running, callers, scrapes, dependency.metric)
            stop_s = _stopped(child, url, running, callers)
        alerts = fired(scrapes)
    is_told = observed["metric"] != "" and bool(alerts)
    is_good = (fault in dependency.survives or is_told) and stop_s <= PROMISED_S
    name = re.sub(r'\{dependency="(.*)"\}', r"{\1}", dependency.metric)
    metric = f"{name} after {observed['metric']} s" if observed["metric"] else "none"
    return FaultReport(
        dependency.name,
        fault,
        observed["server"],
        observed["model"],
        observed["predict"],
        observed["decide"],
        metric,
        ", ".join(sorted(alerts)) or "none",
        stop_s,
        is_good,
    )


def _observed(
    url: str,
    running: RunningDependency,
    callers: ThreadPoolExecutor,
    scrapes: list[dict[str, float]],
    metric: str,
) -> dict[str, str]:
    """Send requests for a while; return the last answers, and the seconds until the metric rose."""
    began_s, before, risen = time.monotonic(), scrapes[0].get(metric, 0.0), ""
    number = 0
    while (past_s := time.monotonic() - began_s) < OBSERVED_S:
        for verb in ("predict", "decide"):
            callers.submit(_ask, url, verb, running.sent)
        if number % 4 == 0:
            callers.submit(running.use, url)
        number += 1
        samples = _scrape(url)
        if not risen and samples.get(metric, 0.0) > before:
            risen = f"{past_s:.1f}"
        if past_s > (len(scrapes) - 2) * OBSERVED_S / _SCRAPES:
            scrapes.append(samples)
        time.sleep(_EVERY_S)
    answers = {verb: " in ".join(_ask(url, verb, running.sent)) for verb in ("predict", "decide")}
    ready = {
        "server": _status(url + _READY),
        "model": _status(f"{url}/v2/models/score/ready"),
    }
    return {**answers, **ready, "metric": risen}


def _stopped(child: Child, url: str, running: RunningDependency, callers: ThreadPoolExecutor) -> float:
    """Stop the gateway while requests are in progress; return the seconds that this took."""
    for verb in ("predict", "decide"):
        callers.submit(_ask, url, verb, running.sent)
    callers.submit(running.use, url)
    time.sleep(_EVERY_S)
    began_s = time.monotonic()
    child.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(3 * PROMISED_S)
    return time.monotonic() - began_s


def _ask(url: str, verb: str, headers: Mapping[str, str]) -> tuple[str, str]:
    """Return the status of the answer, or the error instead, and the time it took."""
    began_s = time.monotonic()
    try:
        address = f"{url}/v1/models/score:{verb}"
        answer = httpx.post(address, json=ROWS, headers=headers, timeout=_PATIENCE_S)  # noqa: TID251 (it has a timeout)
        status = str(answer.status_code)
    except httpx.HTTPError as error:
        status = type(error).__name__
    return status, f"{time.monotonic() - began_s:.2f} s"


def _status(url: str) -> str:
    return str(httpx.get(url, timeout=_PATIENCE_S).status_code)  # noqa: TID251 (it has a timeout)


def _scrape(url: str) -> dict[str, float]:
    """Return the gateway's own samples, as Prometheus writes their names and labels."""
    page = httpx.get(f"{url}/metrics", timeout=_PATIENCE_S).text  # noqa: TID251 (it has a timeout)
    samples = (each for family in text_string_to_metric_families(page) for each in family.samples)
    return {
        sample.name + _labelled(sample.labels): sample.value
        for sample in samples
        if sample.name.startswith("rationale_") and not sample.name.endswith("_created")
    }


def _labelled(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}" if labels else ""


def fired(scrapes: Sequence[Mapping[str, float]]) -> set[str]:
    """Return the alerts that fire, as if a minute had gone by between two scrapes."""
    series: dict[str, list[str]] = defaultdict(lambda: ["_"] * len(scrapes))
    for place, scrape in enumerate(scrapes):
        for name, value in scrape.items():
            series[name][place] = repr(value)
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": " ".join(each)} for name, each in series.items()],
        "promql_expr_test": [
            {
                "expr": 'group by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": f"{len(scrapes) - 1}m",
                "exp_samples": [],
            }
        ],
    }
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(ALERTS, folder)
        file = Path(folder) / "tests.yml"
        content = {"rule_files": [ALERTS.name], "evaluation_interval": "1m", "tests": [test]}
        file.write_text(yaml.safe_dump(content))
        command = [need("Prometheus"), "test", "rules", str(file)]
        process = subprocess.run(command, capture_output=True, text=True)  # noqa: S603 (ours)
    output = process.stdout + process.stderr
    alerts = set(re.findall(r'alertname="(\w+)"', output))
    if process.returncode and not alerts:
        raise RuntimeError(output)
    return alerts


# --- all of them ------------------------------------------------------------------------------------------


def table(rows: Sequence[FaultReport]) -> str:
    lines = [HEAD, ("---",) * len(HEAD), *(row.cells() for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=FAULTS)
    parser.add_argument("--only", default="", help="only dependencies whose names begin with this")
    parser.add_argument("--at-once", type=int, default=4)
    options = parser.parse_args(arguments)
    if "cut off" in options.faults and os.geteuid() != 0:
        raise SystemExit("cut off needs root, for iptables: leave it out with --faults killed frozen")
    chosen: list[Any] = [
        dependency for dependency in DEPENDENCIES if dependency.name.startswith(options.only)
    ]
    with ThreadPoolExecutor(options.at_once) as pool:
        rows = list(pool.map(lambda pair: measure(*pair), itertools.product(chosen, options.faults)))
    print(table(rows))
    bad = [f"{row.dependency}, {row.fault}" for row in rows if not row.is_good]
    if bad:
        print("not told, or too slow to stop: " + "; ".join(bad), file=sys.stderr)
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
