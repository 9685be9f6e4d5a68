"""The console's delay behind a slider: from its input event to the frame that shows the answer.

    python -m benchmarks.console.sliders [--moves 100] [--pause 20] [--turns 3]

`rationale serve` with examples/credit and a Chromium of this machine, both on all of its cores. The page asks
for the score and the attributions of each row that it has time for; it always shows the last one.
"""

import argparse
import json
import shutil
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from benchmarks.cases import positive, reporting_errors
from benchmarks.decisions import credit
from loadtests.systems.process import gateway
from rationale.errors import RationaleError

SLIDER = "input[type=range]"
VIEWPORT: Any = {"width": 1280, "height": 900}

# From an input event to the frame in which the bars and the score of that very row are painted.
MOVE = """
async ([selector, moves, pause]) => {
  const slider = document.querySelector(selector);
  const view = document.querySelector("section.view");
  const [least, most] = [Number(slider.min), Number(slider.max)];
  const painted = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  const times = [];
  let shown = 0;
  const moved = new Map();
  const observer = new MutationObserver(async () => {
    const row = view.dataset.row;
    const began = moved.get(row);
    if (began === undefined) return;
    moved.delete(row);
    shown += 1;
    await painted();
    times.push(performance.now() - began);
  });
  observer.observe(view, { attributes: true, attributeFilter: ["data-row"] });
  const before = { ...view.dataset };
  let last = null;
  for (let i = 1; i <= moves; i += 1) {
    slider.value = least + ((most - least) * ((i * 37) % 101)) / 101;
    const began = performance.now();
    slider.dispatchEvent(new Event("input", { bubbles: true }));
    last = view.dataset.asking;
    moved.set(last, began);
    await new Promise((done) => setTimeout(done, pause));
  }
  const end = performance.now() + 20000;
  while (view.dataset.row !== last && performance.now() < end) await painted();
  await painted();
  observer.disconnect();
  const count = (name) => Number(view.dataset[name] ?? 0) - Number(before[name] ?? 0);
  return { times, last, row: view.dataset.row, entry: slider.closest(".field").querySelector("input").value,
           asked: count("asked"), answered: count("answered"), superseded: count("superseded") };
}
"""


@dataclass(frozen=True)
class SliderAnswers:
    """The answers to a slider's moves.

    Attributes:
        times: milliseconds of each move that was shown, from its input event to the frame after.
        last: the row after the last move; row: the one that is shown.
        entry: the value in the slider's own field.
    """

    times: list[float]
    last: dict[str, Any]
    row: dict[str, Any]
    entry: str
    asked: int
    answered: int
    superseded: int

    @property
    def median_ms(self) -> float:
        """Return the median time of a move."""
        return statistics.median(self.times)


def move(page: Page, moves: int = 100, pause_ms: float = 20, selector: str = SLIDER) -> SliderAnswers:
    """Move a slider of the Explain view `moves` times, `pause_ms` apart."""
    counts = page.evaluate(MOVE, [selector, moves, pause_ms])
    return SliderAnswers(**{**counts, "last": json.loads(counts["last"]), "row": json.loads(counts["row"])})


@contextmanager
def chromium() -> Iterator[Browser]:
    """Yield this machine's Chromium.

    Raises:
        RationaleError: if there is none.
    """
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        raise RationaleError("there is no Chromium here: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


def main(argv: Sequence[str] | None = None) -> None:
    """Print a line for each turn."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--moves", type=positive, default=100)
    parser.add_argument("--pause", type=positive, default=20, help="milliseconds between two moves (20)")
    parser.add_argument("--turns", type=positive, default=3)
    options = parser.parse_args(argv)
    with reporting_errors(), tempfile.TemporaryDirectory() as folder, chromium() as browser:
        repository = credit()[0].write(Path(folder) / "models", "credit").parent
        with gateway(repository) as server:
            page = browser.new_page(viewport=VIEWPORT)
            page.goto(f"http://{server.http}/console/#explain?model=credit")
            page.wait_for_selector(".curve .score")
            for _ in range(options.turns):
                moved = move(page, options.moves, options.pause)
                late = statistics.quantiles(moved.times, n=20)[-1]
                print(
                    f"{moved.asked} moves: {moved.answered} answered, {moved.superseded} superseded, "
                    f"the last {'shown' if moved.row == moved.last else 'NOT SHOWN'}; "
                    f"median {moved.median_ms:.1f} ms, 95% {late:.1f} ms"
                )


if __name__ == "__main__":
    main()
