"""How soon a slider of the console is followed: from its input event to the frame that shows the answer.

    python -m benchmarks.console [--moves 100] [--pause 20] [--turns 3]

`rationale serve` with examples/credit and a Chromium of this machine, both on the cores that there are. The
page asks for the score and the attributions of each row that it has time for; the last one is always shown.
"""

import argparse
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.arguments import positive
from benchmarks.sliders import move

CREDIT = Path(__file__).parents[1] / "examples" / "credit"
COMPILE = (
    *("compile", str(CREDIT / "credit.onnx"), "--references", str(CREDIT / "near_threshold.csv")),
    *("--decision", str(CREDIT / "decision.yaml"), "--name", "credit", "--repository"),
)


@contextmanager
def gateway(folder: str) -> Iterator[str]:
    """The URL of a gateway with the model."""
    command = [sys.executable, "-m", "rationale"]
    subprocess.run([*command, *COMPILE, folder], check=True, capture_output=True)  # noqa: S603
    served = subprocess.Popen(  # noqa: S603
        [*command, "serve", "--repository", folder, "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert served.stdout is not None
        lines = (re.fullmatch(r"ready on (\S+)\n", line) for line in served.stdout)
        yield next(found[1] for found in lines if found)
    finally:
        served.terminate()
        served.wait()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--moves", type=positive, default=100)
    parser.add_argument("--pause", type=positive, default=20, help="milliseconds between two moves (20)")
    parser.add_argument("--turns", type=positive, default=3)
    asked = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        parser.error("there is no Chromium here: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with (
        tempfile.TemporaryDirectory() as folder,
        gateway(f"{folder}/repository") as url,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(f"{url}/console/#explain?model=credit")
        page.wait_for_selector(".curve .score")
        for _ in range(asked.turns):
            moved = move(page, asked.moves, asked.pause)
            late = statistics.quantiles(moved.times_ms, n=20)[-1]
            print(
                f"{moved.asked} moves: {moved.answered} answered, {moved.superseded} superseded, "
                f"the last {'shown' if moved.row == moved.last else 'NOT SHOWN'}; "
                f"median {moved.median_ms:.1f} ms, 95% {late:.1f} ms"
            )
        browser.close()


if __name__ == "__main__":
    main()
