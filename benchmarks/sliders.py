"""Moves a slider as fast as a hand can and measures, in the page itself, when the answer is seen."""

import json
import statistics
from dataclasses import dataclass
from typing import Any

from playwright.sync_api import Page

SLIDER = "input[type=range]"

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
class Moved:
    """What became of the moves.

    Attributes:
        times_ms: of each move that was shown, from the input event to the frame after.
        last: the row after the last move; `row` the one that is shown.
        entry: what the slider's own field says.
    """

    times_ms: list[float]
    last: dict[str, Any]
    row: dict[str, Any]
    entry: str
    asked: int
    answered: int
    superseded: int

    @property
    def median_ms(self) -> float:
        return statistics.median(self.times_ms)


def move(page: Page, moves: int = 100, pause_ms: float = 20, selector: str = SLIDER) -> Moved:
    """Move a slider of the Explain view `moves` times, `pause_ms` apart."""
    found = page.evaluate(MOVE, [selector, moves, pause_ms])
    return Moved(
        found["times"],
        json.loads(found["last"]),
        json.loads(found["row"]),
        found["entry"],
        found["asked"],
        found["answered"],
        found["superseded"],
    )
