"""How soon a slider of the console is followed: from its input event to the frame that shows the answer.

    python -m benchmarks.console [--moves 100] [--pause 20] [--turns 3]

`rationale serve` with examples/credit and a Chromium of this machine, both on the cores that there are. The
page asks for the score and the attributions of each row that it has time for; the last one is always shown.
"""

import argparse
import shutil
import statistics
import tempfile
from pathlib import Path

from benchmarks.arguments import positive
from benchmarks.decisions import credit
from benchmarks.sliders import move
from loadtests.systems.process import gateway


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
        gateway(credit()[0].write(Path(folder) / "models", "credit").parent) as server,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(f"http://{server.http}/console/#explain?model=credit")
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
