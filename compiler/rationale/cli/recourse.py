"""`rationale recourse`."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rationale.errors import InvalidOptionError
from rationale.terminal import Panel, Repository, progress_bar, reporting_errors

if TYPE_CHECKING:
    from rationale.decisions.decide import Decision
    from rationale.decisions.decided import Undecided
    from rationale.recourse.recourse import Recourse

app = typer.Typer()


@app.command("recourse", rich_help_panel=Panel.DECIDE)
def recourse_command(
    name: Annotated[str, typer.Argument(help="The model, compiled with --decision.", metavar="NAME")],
    rows_in: Annotated[
        Path,
        typer.Option(
            "--input", help="Applicants: .csv, .parquet, .xlsx, .npz or .npy, as for decide.", metavar="FILE"
        ),
    ],
    repository: Repository = Path("model_repository"),
    save: Annotated[
        Path | None,
        typer.Option(help="Write the answers: a .jsonl, one line for each row.", metavar="FILE"),
    ] = None,
    rows: Annotated[int, typer.Option(help="Print this many rows of the file.", min=0)] = 3,
) -> None:
    """Find the changes that would have changed a decision.

    Prints for each applicant the flip points (for each feature alone, the nearest value at which the decision
    is another) and, for a decline, up to three plans: the cheapest changes of up to four features together
    that lead to an approval. The decision profile says under `actionable` what an applicant can change. The
    entry has decided on each plan. A plan says what the model would have decided; it promises nothing.

    Example: rationale recourse credit --input applicants.csv --save recourse.jsonl
    """
    with reporting_errors():
        from rationale.artifact.applicants import read_applicants
        from rationale.artifact.entry import load
        from rationale.artifact.repository.folder import atomic_file

        if save is not None and save.suffix != ".jsonl":
            raise InvalidOptionError(f"--save {save}: the answers are written as .jsonl.")
        compiled = load(repository, name)
        if compiled.manifest.decision is None:
            raise InvalidOptionError(f"{name}: has no decision profile: compile it with --decision FILE.")
        inputs, cells, _ = read_applicants(compiled, rows_in)
        count = len(next(iter(inputs.values())))
        printed, answers = list[str](), list[str]()
        with progress_bar() as progress:
            for i, (decision, found) in enumerate(compiled.decisions_with_recourse(inputs, cells)):
                progress("finding changes", i, count)
                answers.append(json.dumps({"row": i, "decision": decision.decision, **found.as_json()}))
                if i < rows:
                    printed += _lines(i, decision, found)
        print("\n".join(printed))
        if count > rows:
            left = count - rows
            print(f"… and {left} more row{'s' * (left != 1)} (--rows, --save)", file=sys.stderr)
        if save is not None:
            with atomic_file(save) as file:
                file.write_text("\n".join([*answers, ""]), encoding="utf-8")
            print(f"{save}: {count} rows")


def _lines(row: int, decision: "Decision | Undecided", found: "Recourse") -> Iterator[str]:
    """Yield the lines about one applicant."""
    score = "" if decision.score is None else f", score {decision.score:.6g}"
    yield f"row {row + 1}: {decision.decision or 'no decision'}{score}"
    if found.note:
        yield f"  {found.note}"
    for i, plan in enumerate(found.plans, 1):
        changes = "; ".join(
            f"{key} {_text(v)}{_range(plan.regions.get(key))}" for key, v in plan.changes.items()
        )
        yield f"  plan {i} (cost {plan.cost:.2f}, score {plan.score:.6g}): {changes}"
    for point in found.flip_points:
        about = "" if point.exact else "about "
        yield f"  {point.feature} alone: {point.to} at {about}{_text(point.value)}{_range(point.region)}"


def _range(region: "tuple[float | None, float | None] | None") -> str:
    """Return a region in words."""
    if region is None or region == (None, None):
        return ""
    low, high = region
    if low is None:
        return f" (at most {_text(high)})"
    if high is None:
        return f" (at least {_text(low)})"
    return "" if low == high else f" ({_text(low)} to {_text(high)})"


def _text(value: Any) -> str:
    return f"{value:.7g}" if isinstance(value, float) else str(value)
