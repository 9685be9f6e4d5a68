"""The console's portfolio: a file dropped into a real Chromium, until all its rows are explained and drawn.

    python -m benchmarks.console.portfolio [csv parquet] [--rows 100000] [--turns 3]

The model is a credit network of 24 features by DeepSHAP over 100 references, served by a `rationale serve` of
its own; the file has three columns more. Medians of the seconds from the choice of the file to the last
picture, and of the longest time between two frames while the page is scrolled from end to end. Needs the
extra `test` and Debian's chromium.
"""

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np
import pandas as pd
from playwright.sync_api import Browser, Page

from benchmarks.cases import parser_of, positive, reporting_errors
from benchmarks.console.sliders import VIEWPORT, chromium
from benchmarks.timing import quietly
from loadtests.systems.process import gateway
from rationale import DeepShap, compile_model

CREDIT = Path(__file__).parents[2] / "examples" / "credit"
KINDS = ("csv", "parquet")
REFERENCES = 100
BEHAVIOUR = 14  # features beside the ten of examples/credit
UNREAD_COLUMNS = ("id", "region", "defaulted")  # columns that the model does not read
DRAWN_MS = 180_000
STEP = 120  # pixels of a turn of the wheel

_FRAMES = """() => {
  window.gaps = [];
  let last = performance.now();
  const frame = (now) => { window.gaps.push(now - last); last = now; requestAnimationFrame(frame); };
  requestAnimationFrame(frame);
}"""


def credit_rows(rows: int, seed: int = 0) -> pd.DataFrame:
    """Return applicants like those of examples/credit, with an id, a region and an outcome."""
    random = np.random.default_rng(seed)
    references = pd.read_csv(CREDIT / "references.csv")
    table = references.sample(rows, replace=True, random_state=seed).reset_index(drop=True)
    table = (table * random.uniform(0.6, 1.5, table.shape)).round(3)
    risk = 3 * table["debt_to_income"] + 0.8 * table["late_payments_2y"] + 2 * table["utilisation"]
    risk = 1 / (1 + np.exp(-(risk - risk.median() - 1)))
    table.insert(0, "id", np.arange(rows))
    table["region"] = random.choice(["north", "south", "east", "west"], rows)
    lower = np.where(table["region"] == "north", 0.5, 1)
    table["defaulted"] = (random.uniform(size=rows) < risk * lower).astype(int)
    return table


def wide_rows(rows: int, seed: int = 0) -> pd.DataFrame:
    """Return the same with 14 features more."""
    random = np.random.default_rng(seed + 1000)
    drawn = random.normal(size=(rows, BEHAVIOUR)) * (1 + np.arange(BEHAVIOUR) % 3)
    more = pd.DataFrame(drawn.round(3), columns=[f"behaviour_{i + 1:02}" for i in range(BEHAVIOUR)])
    return pd.concat([credit_rows(rows, seed), more], axis=1)


def write_wide(folder: Path) -> None:
    """Compile the entries `wide`."""
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    train = wide_rows(4000, 1)
    features = train.drop(columns=list(UNREAD_COLUMNS))
    with quietly():
        model = make_pipeline(StandardScaler(), MLPClassifier((32, 16), max_iter=20, random_state=0))
        model.fit(features, train["defaulted"])
    compile_model(model, DeepShap(features.sample(REFERENCES, random_state=0))).write(folder, "wide")


def write_rows(table: pd.DataFrame, folder: Path, kind: str) -> Path:
    file = folder / f"rows.{kind}"
    if kind == "csv":
        table.to_csv(file, index=False)
    else:
        table.to_parquet(file, index=False)
    return file


def drop(page: Page, url: str, model: str, file: Path) -> float:
    """Open the portfolio of a model, drop a file, wait until all is drawn; return the seconds."""
    page.goto(f"{url}/console/#portfolio?model={model}")
    page.locator("#portfolio-file").wait_for()
    began = time.perf_counter()
    page.set_input_files("#portfolio-file", file)
    page.locator(".view[data-state=drawn], .view[data-state=failed]").wait_for(timeout=DRAWN_MS)
    return time.perf_counter() - began


def scroll(page: Page) -> float:
    """Scroll from the top to the end by the wheel; return the longest time between two frames, seconds."""
    page.evaluate("scrollTo(0, 0)")
    page.mouse.move(400, 400)
    page.evaluate(_FRAMES)
    height = page.evaluate("document.documentElement.scrollHeight")
    for _ in range(height // STEP):
        page.mouse.wheel(0, STEP)
        page.wait_for_timeout(16)
    gaps: list[float] = page.evaluate("gaps")
    return max(gaps[2:]) / 1000


def measured(browser: Browser, url: str, file: Path, turns: int) -> str:
    seconds, gaps, size = [], [], file.stat().st_size / 1e6
    for _ in range(turns):
        page = browser.new_page(viewport=VIEWPORT)
        seconds.append(drop(page, url, "wide", file))
        gaps.append(scroll(page))
        page.close()
    return f"{file.suffix[1:]:8}{size:9.1f} MB{median(seconds):11.1f} s{median(gaps) * 1000:11.0f} ms"


def main(argv: Sequence[str] | None = None) -> None:
    """Print a line for each kind of file."""
    parser = parser_of(__doc__, KINDS, many=True)
    parser.add_argument("--rows", type=positive, default=100_000, help="of the file (100,000)")
    parser.add_argument("--turns", type=positive, default=3, help="of each kind (3)")
    options = parser.parse_args(argv)
    with reporting_errors(), tempfile.TemporaryDirectory() as there, chromium() as browser:
        folder = Path(there)
        write_wide(folder / "models")
        table = wide_rows(options.rows, 2)
        print(f"{'file':8}{'size':>12}{'drawn':>13}{'frame':>14}")
        with gateway(
            folder / "models", "--grpc-port", "off", RATIONALE_STATE=str(folder / "state")
        ) as server:
            for kind in options.models or KINDS:
                file = write_rows(table, folder, kind)
                print(measured(browser, f"http://{server.http}", file, options.turns), flush=True)


if __name__ == "__main__":
    main()
