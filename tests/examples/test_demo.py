"""`rationale demo`, for real: what it prints, how it fails, and what it leaves behind."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from rationale_service.cli import demo

ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, "-m", "rationale_service.cli", "demo")
ASTRAY = {"RATIONALE_TRITON": "localhost:1", "HTTP_PROXY": "http://localhost:1"}  # no business of the demo's


def run(environment: dict[str, str], folder: Path = ROOT) -> str:
    terminal = {"COLUMNS": "80", "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"}
    result = subprocess.run(
        COMMAND,
        cwd=folder,
        env={**os.environ, **terminal, **environment},
        capture_output=True,
        encoding="utf-8",
        timeout=300,
    )
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


@pytest.fixture(scope="module")
def printed() -> str:
    return run(ASTRAY)


def applicants_of(text: str) -> list[str]:
    return re.split(r"^Applicant ", text, flags=re.MULTILINE)[1:]


def test_the_decisions(printed):
    assert [block.splitlines()[0] for block in applicants_of(printed)] == [
        "1 of 4: APPROVED   default probability 1.66%, threshold 20%",
        "2 of 4: DECLINED   default probability 97.33%, threshold 20%",
        "3 of 4: DECLINED   default probability 27.72%, threshold 20%",
        "4 of 4: REFERRED   default probability 18.62%, threshold 20%",
    ]
    references = (demo.EXAMPLE / "near_threshold.csv").read_text().splitlines()[1:]
    assert f"compared with {len(references)} who only just passed" in printed


def test_the_reasons(printed):
    row = re.compile(r"^  (R\d\d)  +([+-][\d.]+)  \w", re.MULTILINE)
    approved, *declined = [row.findall(block) for block in applicants_of(printed)]
    assert approved == []
    assert [code for code, _ in declined[0]] == ["R05", "R07", "R09", "R03"]
    assert [len(reasons) for reasons in declined] == [
        4,
        3,
        4,
    ]  # one has less than a hundredth of what is adverse
    for block, reasons in zip(applicants_of(printed)[1:], declined, strict=True):
        assert all(f" {effect} " in block.split("raises it")[1] for _, effect in reasons)


def test_the_effects_add_up(printed):
    """Ten effects of two decimals, each off by at most 0.005, and two sums that are rounded too."""
    row = re.compile(r"^\w+ +[\d.,]+ +([+-]\d+\.\d\d)", re.MULTILINE)
    last = re.compile(r"base value (\S+)%, effects (\S+) points = (\S+)%;\s+completeness gap (\S+)")
    for block in applicants_of(printed):
        effects = [float(effect) for effect in row.findall(block)]
        base, total, value, gap = (float(amount) for amount in last.search(block).groups())
        assert len(effects) == 10
        assert [abs(effect) for effect in effects] == sorted(map(abs, effects), reverse=True)
        assert sum(effects) == pytest.approx(total, abs=0.055)
        assert base + total == pytest.approx(value, abs=0.016)
        assert base == pytest.approx(19.69, abs=0.011)  # the mean of the references, as ONNX Runtime has it
        assert abs(gap) < 1e-5


def test_bars_point_left_and_right_in_80_columns_without_colour(printed):
    lines = [line.rstrip() for line in printed.splitlines()]
    lower_bar, upper_bar = "█" * 17 + "  │", " " * 17 + "  │  " + "█" * 17
    assert f"income                58,000   -4.19  {lower_bar}" in lines
    assert f"late_payments_2y           3  +35.30  {upper_bar}" in lines
    assert "\x1b" not in printed
    assert max(map(len, lines[: lines.index("Next:")])) <= 80


def test_the_latency_and_the_commands_by_hand(printed):
    latency = r"([\d.]+) ms for the prediction alone, ([\d.]+) ms for the decision with its reasons"
    latency_match = re.search(latency, " ".join(printed.split()))
    assert all(float(milliseconds) > 0 for milliseconds in latency_match.groups())
    assert "compile examples/credit/credit.onnx --references examples/credit/near_threshold.csv" in printed
    assert "-d @examples/credit/applicants.json" in printed


@pytest.mark.full
def test_it_runs_from_a_wheel(tmp_path):
    """An installed package has no checkout around it, and a copy of the example inside."""
    package, path = tmp_path / "rationale_service", os.pathsep.join((str(tmp_path), str(ROOT / "compiler")))
    shutil.copytree(ROOT / "service" / package.name, package)
    shutil.copytree(ROOT / "examples" / "credit", package / "_examples" / "credit")
    printed = run({"PYTHONPATH": path}, tmp_path)
    assert "-d @rationale_service/_examples/credit/applicants.json" in printed


# --- failures ---


@pytest.fixture(autouse=True)
def handlers():
    """Those of this process, which the demo replaces."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.full
def test_an_example_that_does_not_compile(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(demo, "EXAMPLE", tmp_path)
    assert demo.run_demo() == 1
    assert capsys.readouterr().err == (
        f"error: `rationale compile` ended with status 2: {tmp_path}/near_threshold.csv: cannot be read: "
        "No such file or directory.\n"
    )


COMPILES = "import sys, pathlib\nif sys.argv[1] == 'compile': sys.exit()\n"


@pytest.mark.parametrize(
    ("serve", "expected"),
    [
        (
            "sys.exit('a warning\\nerror: the port is taken')",
            "`rationale serve` ended with status 1: the port is taken",
        ),
        ("pass", "`rationale serve` ended with status 0: it did not say why."),
        ("print('ready on http://127.0.0.1:9')", "POST /v1/models/credit:decide failed: ConnectionRefused"),
    ],
)
def test_a_gateway_that_fails(monkeypatch, capsys, serve, expected):
    monkeypatch.setattr(demo, "CLI", (sys.executable, "-c", COMPILES + serve))
    assert demo.run_demo() == 1
    assert capsys.readouterr().err.startswith(f"error: {expected}")


REFUSES = """
import http.server, os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.send_error(503)
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
print(f"ready on http://127.0.0.1:{server.server_port}", flush=True)
server.serve_forever()
"""


def test_a_gateway_that_refuses_and_does_not_stop(monkeypatch, capsys):
    monkeypatch.setattr(demo, "CLI", (sys.executable, "-c", COMPILES + REFUSES))
    monkeypatch.setattr(demo, "STOP_TIMEOUT_S", 0.2)
    before = psutil.Process().children()  # of other tests
    assert demo.run_demo() == 1
    assert "POST /v1/models/credit:decide failed with status 503" in capsys.readouterr().err
    assert set(psutil.Process().children()) <= set(before)


@pytest.mark.full
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_nothing_behind(tmp_path, number, status):
    lines = (
        "import signal, sys",
        # A shell's background jobs, and all that they start, ignore it.
        "signal.signal(signal.SIGINT, signal.default_int_handler)",
        "from rationale_service.cli.main import app",
        "app(['demo'])",
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [sys.executable, "-c", "\n".join(lines)], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert any(line.startswith("compiling") for line in process.stdout)
        while not (children := psutil.Process(process.pid).children()):
            assert process.poll() is None
        time.sleep(0.2)  # the gateway starts, which takes a second
        process.send_signal(number)
        assert process.wait(60) == status
    assert not any(child.is_running() for child in children)
    assert list(tmp_path.iterdir()) == []
