"""`rationale demo`, for real; and against a stub of the command line, for what a sound one never does."""

import io
import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from compiler.manifest import (
    Digests,
    ExplainedInput,
    Manifest,
    Measured,
    Method,
    References,
    TensorSpec,
)
from service.cli import demo
from service.cli.demo_report import HALF_BAR, bar, short

ROOT = Path(__file__).parent.parent
STUB = Path(__file__).parent / "stub_cli.py"

APPLICANT = TensorSpec(name="applicant", datatype="FP32", shape=(10,))
PROBABILITY = TensorSpec(name="default_probability", datatype="FP32", shape=(1,))
MANIFEST = Manifest(
    model="credit",
    method=Method(name="deepshap"),
    digests=Digests(model="m", references="r", options="o", explanation="e"),
    inputs=(APPLICANT,),
    explained=(ExplainedInput(tensor=APPLICANT, attributions="applicant_attributions"),),
    outputs=(PROBABILITY,),
    explained_output="default_probability",
    targets=(0,),
    base_value="base_value",
    explained_value="explained_value",
    completeness_gap="completeness_gap",
    references=References(count=97, given=100, base_value=(0.1,)),
    opset=21,
    ir_version=10,
    least_onnxruntime="1.18",
    tools={},
    measured=Measured(
        rows=3, outputs_error=0, completeness_gap=0, rows_error=0, nodes=9, model_bytes=9, latency_ms=1
    ),
)


@pytest.fixture
def stub(tmp_path_factory):
    """The folder that the stub works with; when the test is over, no child is left."""
    folder = tmp_path_factory.mktemp("stub")
    (folder / "manifest.json").write_text(MANIFEST.to_json())
    yield folder
    assert not any(is_alive(pid) for pid in read_pids(folder))


@pytest.fixture
def stubbed(monkeypatch, stub):
    """A function from a mode of the stub to (exit status, what was printed)."""

    def run(mode, folder=None):
        monkeypatch.setattr(demo, "CLI", (sys.executable, str(STUB), mode, str(stub)))
        console = Console(file=io.StringIO(), width=80)
        return demo.run_demo(folder, console), console.file.getvalue()

    return run


def read_pids(folder: Path) -> list[int]:
    path = folder / "pids"
    return [int(line) for line in path.read_text().splitlines()] if path.exists() else []


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# --- the real thing ---


@pytest.fixture(scope="module")
def real():
    """What `rationale demo` prints in 80 columns and without colour, and the processors' seconds it took."""
    terminal = {"COLUMNS": "80", "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"}
    astray = {
        "RATIONALE_TRITON": "localhost:1",
        "HTTP_PROXY": "http://localhost:1",
    }  # no business of the demo's
    environment = {**os.environ, **terminal, **astray}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "service.cli", "demo"],
        capture_output=True,
        encoding="utf-8",
        env=environment,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return done.stdout, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def applicants_of(text: str) -> list[str]:
    return re.split(r"^Applicant ", text, flags=re.MULTILINE)[1:]


def test_the_decisions(real):
    text, taken = real
    heads = [block.splitlines()[0] for block in applicants_of(text)]
    assert heads == [
        "1 of 4: APPROVED   default probability 1.66% (declined from 20% on)",
        "2 of 4: DECLINED   default probability 97.33% (declined from 20% on)",
        "3 of 4: DECLINED   default probability 27.72% (declined from 20% on)",
        "4 of 4: APPROVED   default probability 18.62% (declined from 20% on)",
    ]
    assert taken < 60


def test_the_effects_add_up(real):
    """Ten effects of two decimals, each off by at most 0.005, and two sums that are rounded too."""
    row = re.compile(r"^\w+ +[\d.,]+ +([+-]\d+\.\d\d)", re.MULTILINE)
    last = re.compile(r"base value (\S+)%, effects (\S+) points = (\S+)%;\s+completeness gap (\S+)")
    blocks = applicants_of(real[0])
    assert len(blocks) == 4
    for block in blocks:
        effects = [float(found) for found in row.findall(block)]
        base, total, value, gap = (float(found) for found in last.search(block).groups())
        assert len(effects) == 10
        assert [abs(effect) for effect in effects] == sorted(map(abs, effects), reverse=True)
        assert sum(effects) == pytest.approx(total, abs=0.055)
        assert base + total == pytest.approx(value, abs=0.016)
        assert base == pytest.approx(6.39, abs=0.011)  # the mean of the references, as ONNX Runtime has it
        assert abs(gap) < 1e-5


def test_it_fits_80_columns_without_colour(real):
    assert "\x1b" not in real[0]
    report = real[0][real[0].index("Every applicant") : real[0].index("Next:")]
    assert max(map(len, report.splitlines())) <= 80


# --- against the stub ---


def test_what_is_printed(stubbed):
    status, text = stubbed("good")
    assert status == 0
    lines = text.splitlines()
    first = lines.index("Applicant 1 of 4: APPROVED   default probability 5.00% (declined from 20% on)")
    left, right = "█" * HALF_BAR, "█" * 15
    assert lines[first + 2].rstrip() == f"recent_inquiries           0   -9.00  {left} │"
    assert lines[first + 3].rstrip() == f"employment_years         8.5   +8.00  {' ' * HALF_BAR} │ {right}"
    assert lines[first + 11].rstrip() == f"income                58,000   +0.00  {' ' * HALF_BAR} │"
    assert lines[first + 12] == "base value 10.00%, effects -5.00 points = 5.00%; completeness gap 1.5e-08"
    words = " ".join(text.split())
    assert "9 nodes, 0 kB. Checked on 3 rows when compiled: outputs off by 0.0e+00 of the largest, " in words
    assert "compared with 97 typical approved applicants" in words


def test_it_prints_ascii_where_the_terminal_has_no_more(monkeypatch, stub):
    monkeypatch.setattr(demo, "CLI", (sys.executable, str(STUB), "good", str(stub)))
    written = io.BytesIO()
    console = Console(file=io.TextIOWrapper(written, encoding="ascii"), width=80)
    assert demo.run_demo(None, console) == 0
    console.file.flush()
    assert f"-9.00  {'#' * HALF_BAR} |" in written.getvalue().decode("ascii")


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (
            "does not compile",
            ["`rationale compile` failed", "status 1", "| credit.onnx: operator Wobble"],
        ),
        ("writes nothing", ["`rationale compile` failed", "explanation.json: cannot be read"]),
        ("does not start", ["`rationale serve` failed", "before it was ready", "| the port is taken"]),
        ("refuses", ["POST /v1/models/credit:explain failed", "status 503", "| the log of the gateway"]),
        ("answers otherwise", [":explain failed", "KeyError('explanations')"]),
        ("no json", ["POST /v1/models/credit:explain failed", "not JSON: <html>"]),
    ],
)
def test_a_failing_step_is_named(stubbed, mode, expected):
    status, text = stubbed(mode)
    assert status == 1
    assert [part for part in expected if part not in text] == []
    assert "Traceback" not in text


def test_a_gateway_that_is_never_ready(stubbed, monkeypatch):
    monkeypatch.setattr(demo, "READY_TIMEOUT_S", 0.5)
    status, text = stubbed("never ready")
    assert (status, "not ready after" in text) == (1, True)


def test_a_gateway_that_ignores_sigterm_is_killed(stubbed, monkeypatch):
    monkeypatch.setattr(demo, "STOP_TIMEOUT_S", 0.2)
    assert stubbed("ignores SIGTERM")[0] == 0


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_child_too(stub, tmp_path, number, status):
    """The stub ignores what the demo sends it first, and hangs in the middle of an answer."""
    lines = (
        "import signal, sys",
        "from service.cli import demo",
        # A shell's background jobs, and all that they start, ignore it.
        "signal.signal(signal.SIGINT, signal.default_int_handler)",
        "demo.STOP_TIMEOUT_S = 0.3",
        f"demo.CLI = (sys.executable, {str(STUB)!r}, 'hangs', {str(stub)!r})",
        "sys.exit(demo.run_demo())",
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", "\n".join(lines)], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert any(line.startswith("starting the gateway") for line in process.stdout)
        process.send_signal(number)
        assert process.wait(60) == status
    assert len(read_pids(stub)) == 2
    assert not any(is_alive(pid) for pid in read_pids(stub))
    assert list(tmp_path.glob("rationale-demo-*")) == []


def test_a_folder_without_the_example(stubbed, tmp_path):
    (tmp_path / "references.csv").write_text("")
    status, text = stubbed("good", tmp_path)
    assert status == 1
    assert "has no credit.onnx, applicants.json" in " ".join(text.split())


def test_the_example_is_found_in_a_wheel_too(monkeypatch, tmp_path):
    """An installed package has no checkout around it, and a copy of the example inside."""
    assert demo.find_example(None) == ROOT / "examples" / "credit"
    copy = tmp_path / "service" / "_examples" / "credit"
    monkeypatch.setattr(demo, "__file__", str(tmp_path / "service" / "cli" / "demo.py"))
    with pytest.raises(demo.DemoError, match="neither of these exists"):
        demo.find_example(None)
    copy.mkdir(parents=True)
    for name in demo.FILES:
        (copy / name).touch()
    assert demo.find_example(None) == copy


def test_applicants_that_are_none(stubbed, tmp_path):
    for name in demo.FILES:
        (tmp_path / name).write_text("[]")
    status, text = stubbed("good", tmp_path)
    assert (status, "reading the applicants failed" in text) == (1, True)


# --- the bars ---


@pytest.mark.parametrize(
    ("length", "ascii_only", "expected"),
    [
        (1.0, False, " " * 17 + " │ " + "█" * 17),
        (-1.0, False, "█" * 17 + " │"),
        (0.5, False, " " * 17 + " │ " + "█" * 8 + "▌"),
        (-0.5, False, " " * 8 + "▐" + "█" * 8 + " │"),
        (0.01, False, " " * 17 + " │ "),
        (0.0, False, " " * 17 + " │"),
        (0.5, True, " " * 17 + " | " + "#" * 8),
        (-0.25, True, " " * 13 + "#" * 4 + " |"),
    ],
)
def test_bar(length, ascii_only, expected):
    assert bar(length, ascii_only) == expected


def test_paths_are_shown_as_short_as_they_go(monkeypatch):
    monkeypatch.chdir(ROOT)
    assert short(ROOT / "examples" / "credit") == "examples/credit"
    assert short(Path("/etc")) == "/etc"
