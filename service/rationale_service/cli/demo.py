"""`rationale demo`: compile the credit example, serve it, decide, and print results for a loan officer.

Compiler and gateway run as children, through the users' command line: the demo shows what users get. Its
output fits 80 columns and reads the same without colour.
"""

import json
import os
import re
import shlex
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from http.client import OK, HTTPConnection, HTTPException
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.bar import Bar
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from rationale.errors import RationaleError

REQUESTS = 50
INTRODUCTION = """
Every applicant is compared with 100 who only just passed. Their mean default probability, {:.2%}, is the \
base value. The effect of a feature is its DeepSHAP attribution, an estimate of its Shapley value, in \
percentage points: what the applicant's value, rather than theirs, adds to the probability. Base value and \
effects add up to it. The largest effects against an applicant are the reasons, by the codes and texts of \
decision.yaml."""
OUTCOMES = {"approve": "APPROVED", "refer": "REFERRED", "decline": "DECLINED"}
PACKAGE = Path(__file__).resolve().parent.parent
CARRIED = PACKAGE / "_examples" / "credit"  # in a wheel
EXAMPLE = CARRIED if CARRIED.is_dir() else PACKAGE.parents[1] / "examples" / "credit"
CLI = (sys.executable, "-m", "rationale_service.cli")
COMPILE = (
    "compile {example}/credit.onnx --references {example}/near_threshold.csv --method deepshap"
    " --decision {example}/decision.yaml --name credit --repository model_repository"
)
READY = re.compile(r"ready on http://127\.0\.0\.1:(\d+)")
STOP_TIMEOUT_S = 10.0


def run_demo() -> int:
    """Run the demo; return 0, or 1 after a failed step, which a line on stderr names."""
    for number in (signal.SIGTERM, signal.SIGHUP):  # exit by exception, to clean up child and files
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    console = Console(highlight=False, markup=False)
    console.width = min(console.width, 80)
    try:
        with TemporaryDirectory(prefix="rationale-demo-") as workspace:
            show(console, Path(workspace))
    except RationaleError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def show(console: Console, workspace: Path) -> None:
    arguments = COMPILE.format(example=shlex.quote(str(EXAMPLE)))
    with step(console, "compiling credit.onnx with its references"), child(arguments, workspace) as compiler:
        if compiler.wait():
            raise failure("compile", compiler, workspace)
    instances = json.loads((EXAMPLE / "applicants.json").read_bytes())["instances"]
    with serving(console, workspace) as connection:
        with step(console, f"asking it over HTTP for {len(instances)} applicants"):
            decisions = ask(connection, "decide", instances)["decisions"]
        with step(console, f"measuring the latency, {REQUESTS} requests each"):
            latency_ms = [median_ms(connection, verb, instances[:1]) for verb in ("predict", "decide")]
    console.print(INTRODUCTION.format(decisions[0]["base_value"]))
    for number, (features, decision) in enumerate(zip(instances, decisions, strict=True), start=1):
        show_decision(console, f"Applicant {number} of {len(instances)}", features, decision)
    console.print(
        f"\nLatency over HTTP, one applicant, median of {REQUESTS} requests: {latency_ms[0]:.1f} ms for the "
        f"prediction alone, {latency_ms[1]:.1f} ms for the decision with its reasons.\n\nNext:"
    )
    console.print(next_steps(), soft_wrap=True)


@contextmanager
def step(console: Console, label: str) -> Iterator[None]:
    """Show a spinner on a terminal during a step, and at its end a line with its duration."""
    started = time.monotonic()
    with console.status(label, spinner="line"):
        yield
    console.print(f"{label}: {time.monotonic() - started:.1f} s", style="dim")


# --- children and requests ---


@contextmanager
def child(arguments: str, workspace: Path) -> Iterator["subprocess.Popen[str]"]:
    """Run a command of `rationale` without the environment's gateway settings; end it afterwards."""
    command = [*CLI, *shlex.split(arguments)]
    settings = {name: value for name, value in os.environ.items() if not name.startswith("RATIONALE_")}
    with (
        (workspace / "stderr").open("w") as stderr,
        subprocess.Popen(  # noqa: S603 (our own command line)
            command, cwd=workspace, env=settings, stdout=subprocess.PIPE, stderr=stderr, text=True
        ) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_TIMEOUT_S)
            process.kill()  # no effect if it has ended


def failure(command: str, process: "subprocess.Popen[str]", workspace: Path) -> RationaleError:
    status, lines = process.wait(), (workspace / "stderr").read_text().splitlines()
    why = lines[-1].removeprefix("error: ") if lines else "it did not say why."
    return RationaleError(f"`rationale {command}` ended with status {status}: {why}")


@contextmanager
def serving(console: Console, workspace: Path) -> Iterator[HTTPConnection]:
    with child("serve --repository model_repository --port 0", workspace) as gateway:
        with step(console, "starting the gateway"):
            ready = next(filter(None, map(READY.search, gateway.stdout or ())), None)
            if not ready:
                raise failure("serve", gateway, workspace)
        # http.client rather than urllib: it keeps one connection and uses no proxy of the environment
        with closing(HTTPConnection("127.0.0.1", int(ready[1]), timeout=30)) as connection:
            yield connection


def ask(connection: HTTPConnection, verb: str, instances: list[dict[str, float]]) -> Any:
    path, body = f"/v1/models/credit:{verb}", json.dumps({"instances": instances})
    try:
        connection.request("POST", path, body, {"content-type": "application/json"})
        response = connection.getresponse()
        text = response.read().decode()
    except (OSError, HTTPException) as error:
        raise RationaleError(f"POST {path} failed: {error!r}. Is this machine busy? Try again.") from error
    if response.status != OK:
        raise RationaleError(f"POST {path} failed with status {response.status}: {text}")
    return json.loads(text)


def median_ms(connection: HTTPConnection, verb: str, instances: list[dict[str, float]]) -> float:
    times = [time.perf_counter()]
    for _ in range(REQUESTS):
        ask(connection, verb, instances)
        times.append(time.perf_counter())
    return 1e3 * statistics.median(after - before for before, after in pairwise(times))


# --- what is printed ---


def show_decision(console: Console, title: str, features: dict[str, float], decision: dict[str, Any]) -> None:
    """Print the decision, its reasons, a line per feature with the largest effect first, and their sum."""
    base_value, probability = decision["base_value"], decision["score"]
    console.print(f"\n{title}: {OUTCOMES[decision['decision']]}", style="bold", end="")
    console.print(f"   default probability {probability:.2%}, threshold {decision['threshold']:.0%}")
    for reason in decision["reasons"]:
        console.print(f"  {reason['code']}  {100 * reason['attribution']:+6.2f}  {reason['text']}")
    numbers = (Column(header, justify="right") for header in ("value", "effect", "lowers the risk"))
    table = Table("feature", *numbers, "│", "raises it", box=None, pad_edge=False)
    effects = decision["attributions"]
    largest, total = max(map(abs, effects.values())), sum(effects.values())
    for name, effect in sorted(effects.items(), key=lambda item: -abs(item[1])):
        points = Text(f"{100 * effect:+.2f}", "red" if effect > 0 else "green")
        lowers = Bar(largest, largest + effect, largest, width=17, color="green")
        raises = Bar(largest, 0, effect, width=17, color="red")
        table.add_row(name, f"{features[name]:,.7g}", points, lowers, "│", raises)
    console.print(table)
    console.print(
        f"base value {base_value:.2%}, effects {100 * total:+.2f} points = {probability:.2%}; "
        f"completeness gap {abs(decision['completeness_gap']):.1e}"
    )


def next_steps() -> str:
    """Return the demo's commands for the reader's current folder."""
    example = shlex.quote(os.path.relpath(EXAMPLE))
    command = shlex.quote(os.path.relpath(Path(sys.executable).with_name("rationale")))
    return (
        f"  {command} {COMPILE.format(example=example)}\n"
        f"  {command} serve --repository model_repository\n"
        "  curl -H 'content-type: application/json' http://127.0.0.1:8080/v1/models/credit:decide \\\n"
        f"      -d @{example}/applicants.json"
    )
