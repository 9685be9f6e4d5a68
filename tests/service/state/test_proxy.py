"""Three replicas behind haproxy, restarted one after the other: no request is lost."""

import contextlib
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.needs import need
from tests.service import handmade, patient
from tests.service.child import spare_ports, until
from tests.service.decisions.audit.postgres import Postgres
from tests.service.state.cluster import S3, Cluster, cluster

CALLERS = 4
INSTANCES = {"instances": [dict(zip(handmade.FEATURES, row, strict=True)) for row in handmade.X.tolist()]}

# As docs/replicas.md has it.
CONFIGURATION = """
defaults
    mode http
    timeout connect 2s
    timeout client 60s
    timeout server 60s
    option redispatch
    retries 3
    retry-on conn-failure empty-response
    option httpchk GET /v2/health/ready

frontend all
    bind 127.0.0.1:{port}
    default_backend replicas

backend replicas
    balance roundrobin
    default-server check inter 200ms fall 2 rise 1
"""


@contextlib.contextmanager
def haproxy(folder: Path, ports: list[int]) -> Iterator[str]:
    program = need("haproxy")
    port = spare_ports(1)[0]
    servers = [f"    server replica-{i} 127.0.0.1:{each}\n" for i, each in enumerate(ports)]
    (folder / "haproxy.cfg").write_text(CONFIGURATION.format(port=port) + "".join(servers))
    with subprocess.Popen([program, "-f", str(folder / "haproxy.cfg")], stderr=subprocess.DEVNULL) as proxy:
        url = f"http://127.0.0.1:{port}"
        until(lambda: _is_up(url))
        yield url
        proxy.terminate()


def _is_up(url: str) -> bool:
    try:
        return patient.get(f"{url}/v2/health/ready").status_code == 200
    except httpx.TransportError:
        return False


class ProxyCaller(threading.Thread):
    """Explains and decides, one request after the other; keeps what was no right answer."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url, self.answered, self.lost = url, 0, list[str]()
        self.ending = threading.Event()

    def run(self) -> None:
        with httpx.Client(base_url=self.url, timeout=60) as client:
            while not self.ending.is_set():
                for verb in ("explain", "decide"):
                    try:
                        answer = client.post(f"/v1/models/score:{verb}", json=INSTANCES)
                        assert answer.status_code == 200, answer.text
                        if verb == "explain":
                            predictions = answer.json()["predictions"]
                            np.testing.assert_allclose(predictions, handmade.predict(handmade.X), rtol=1e-6)
                        self.answered += 1
                    except (httpx.HTTPError, AssertionError) as error:
                        self.lost.append(repr(error))


@pytest.mark.full
def test_a_rolling_restart_loses_no_request(tmp_path: Path, server: Postgres, storage: S3) -> None:
    handmade.write_score(tmp_path / "models")
    ports = spare_ports(3)
    leaving = {"RATIONALE_SHUTDOWN_DELAY_S": "1"}  # until the proxy has found out
    with cluster(tmp_path, server, storage, **leaving) as three:
        for number, port in enumerate(ports):
            three.start(number, "--port", str(port))
        with haproxy(tmp_path, ports) as url:
            callers = [ProxyCaller(url) for _ in range(CALLERS)]
            for caller in callers:
                caller.start()
            try:
                restarted(three, ports)
            finally:
                for caller in callers:
                    caller.ending.set()
                for caller in callers:
                    caller.join()
    assert [caller.lost for caller in callers] == [[]] * CALLERS
    assert all(caller.answered > 20 for caller in callers)


def restarted(three: Cluster, ports: list[int]) -> None:
    for number, port in enumerate(ports):
        time.sleep(0.5)
        three.stop(number)
        three.start(number, "--port", str(port))
        time.sleep(0.5)  # the proxy finds out
