"""The output of the commands: progress, tables, and this project's errors as one line."""

import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rationale.errors import DriftWarning, RationaleError

if TYPE_CHECKING:
    from rich.console import Console

    from rationale.schema.manifest import ChosenVariants, LayerRule, Manifest, Memory, References

_SHOWN = 3  # base values in a line
_LONGEST = 40  # characters of a rule
_ABOUT = {"deepshap": "approximates Shapley values; rationale evaluate --shapley measures how closely"}


class Panel(StrEnum):
    """The panels of `rationale --help`, by tasks of a user."""

    EXPLAIN = "Explain a model"
    DECIDE = "Decide, and account for decisions"
    SERVE = "Serve models"
    LOOK_UP = "Look up"


def _folder(text: str | Path) -> Path:
    if "://" in str(text):
        raise typer.BadParameter(
            f"'{text}' is a URL, but this command writes to a folder: write there, then copy the folder to "
            "the storage with its own tool (aws s3 sync …)"
        )
    return Path(text)


Repository = Annotated[
    Path, typer.Option(help="The model repository to write to.", metavar="FOLDER", parser=_folder)
]


@contextmanager
def reporting_errors() -> Iterator[None]:
    """Turn this project's errors, and a lack of memory, into a line on stderr and exit status 2.

    Each warning becomes one line.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", DriftWarning)
            warnings.showwarning = partial(_show_warning, warnings.showwarning)
            yield
    except RationaleError as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(2) from error
    except MemoryError as error:
        why = f" ({error})" if str(error) else ""
        print(f"error: out of memory{why}: give fewer rows at a time.", file=sys.stderr)
        raise typer.Exit(2) from error


def _show_warning(
    other: Callable[..., None], message: Warning | str, category: type[Warning], *where: Any
) -> None:
    if issubclass(category, DriftWarning):
        print(f"warning: {message}", file=sys.stderr)
    else:
        other(message, category, *where)


@contextmanager
def progress_bar() -> "Iterator[Callable[[str, int, int], None]]":
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:<30}"), BarColumn(bar_width=30), TimeElapsedColumn())
    with Progress(
        *columns, console=console(stderr=True), transient=True, disable=not sys.stderr.isatty()
    ) as bar:
        task = bar.add_task("", total=1)
        yield lambda stage, completed, total: bar.update(
            task, description=stage, completed=completed, total=total
        )


def console(stderr: bool = False) -> "Console":
    """Return a console; outside a terminal it is wide enough for every line.

    Names are printed without markup.
    """
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else 400
    return Console(stderr=stderr, width=width, markup=False, highlight=False, emoji=False)


def _references_line(references: "References") -> str:
    """Return the number of references, and the mean output from which explanations start."""
    merged = references.given - references.count
    line = f"{references.count}" + f" ({merged} equal ones merged)" * bool(merged)
    if references.base_value is None:
        return line
    shown = ", ".join(map(_format_number, references.base_value[:_SHOWN]))
    return f"{line}; base value {shown}" + ", …" * (len(references.base_value) > _SHOWN)


def _format_number(value: float) -> str:
    """Write a number in six digits, of millions all digits before the point: 2,488,872, not 2.48887e+06."""
    return f"{value:,.0f}" if 999_999.5 <= abs(value) < 1e15 else f"{value:,.6g}"


def _rules_line(rules: "Sequence[LayerRule]") -> str:
    """Count the operators of each type by their rule."""
    counts: dict[str, Counter[str]] = {}
    for layer in rules:
        counts.setdefault(shorten_rule(layer.rule), Counter())[layer.operator] += 1
    return "; ".join(
        f"{rule}: {', '.join(f'{n} {operator}' for operator, n in operators.items())}"
        for rule, operators in counts.items()
    )


def shorten_rule(rule: str) -> str:
    """Shorten a rule with arrays, such as zbox of an image's bounds."""
    return rule if len(rule) <= _LONGEST else f"{rule[: _LONGEST - 1]}…"


def _variants_line(variants: "ChosenVariants") -> str:
    """Return the number of each variant in the graph, and the target machine."""
    counts = ", ".join(f"{count} × {name.split(': ')[1]}" for name, count in variants.taken.items())
    runtime = f", for {variants.runtime}" * (variants.runtime != "onnxruntime")
    return f"{counts} ({variants.provider}, {variants.threads} threads{runtime})"


def print_report(manifest: "Manifest") -> None:
    """Print the measurements in a few lines."""
    from rich.table import Table

    table = Table(show_header=False, box=None, pad_edge=False)
    for row in manifest_lines(manifest):
        table.add_row(*row)
    screen = console()
    with screen.capture() as captured:
        screen.print(table)
    for line in captured.get().splitlines():  # a table fills each line to its own width
        print(line.rstrip())
    for note in manifest.notes:
        print(f"note: {note}", file=sys.stderr)
    for warning in manifest.warnings:
        print(f"warning: {warning}", file=sys.stderr)


def manifest_lines(manifest: "Manifest") -> Iterator[tuple[str, str]]:
    """Yield names and lines that describe a combined graph and its measurements."""
    yield from _explained_lines(manifest)
    yield from _decision_lines(manifest)
    yield from _measured_lines(manifest)


def _explained_lines(manifest: "Manifest") -> Iterator[tuple[str, str]]:
    inputs = [e.tensor.name for e in manifest.explained]
    names = ", ".join(inputs[:_SHOWN]) + f" and {len(inputs) - _SHOWN} more" * (len(inputs) > _SHOWN)
    yield (
        "explains",
        f"{manifest.explained_output} ({_targets(manifest)}) by {names}, {manifest.method.name}",
    )
    if manifest.players:
        yield "players", _players_line(manifest)
    if manifest.layers:
        first, last = manifest.layers[0].tensor.name, manifest.layers[-1].tensor.name
        yield "layers", f"{len(manifest.layers)}, from {first} to {last}"
    if manifest.concepts:
        yield "concepts", f"{manifest.concepts.count} channels of {manifest.concepts.tensor.name}"
    if manifest.method.name in _ABOUT:
        yield "method", _ABOUT[manifest.method.name]
    if manifest.rules:
        yield "rules", _rules_line(manifest.rules)
    if manifest.extensions:
        yield "extensions", ", ".join(map(str, manifest.extensions))
    if manifest.references:
        yield "references", _references_line(manifest.references)
    if manifest.open_references:
        yield "references", f"come with a request, {manifest.open_references.count} at most"


def _decision_lines(manifest: "Manifest") -> Iterator[tuple[str, str]]:
    """Yield a decision profile's rules, and the inputs that callers must send, if there is one."""
    if manifest.decision is None:
        return
    embedded = manifest.decision
    profile, (least, most) = embedded.profile, embedded.output_range
    band = f", a person from {profile.refer[0]:g} to {profile.refer[1]:g}" if profile.refer else ""
    yield (
        "decision",
        f"declines {profile.output} {profile.adverse} {profile.threshold:g}{band}; "
        f"it is {least:g} to {most:g}",
    )
    features = {name for item in manifest.explained for name in item.feature_names or ()}
    further = dict.fromkeys(rule.feature for rule in profile.knock_outs if rule.feature not in features)
    needs = f"; instances need {', '.join(further)} too" if further else ""
    yield (
        "reasons",
        f"{profile.max_reasons} at most, {len(profile.reasons)} texts, against {profile.references.policy} "
        f"references; profile {embedded.digest[:12]}{needs}",
    )


def _players_line(manifest: "Manifest") -> str:
    """List groups with their sizes, and the number of ungrouped features."""
    groups, kind = manifest.groups, manifest.players[0].kind
    sizes = ", ".join(f"{name} ({len(members)})" for name, members in list(groups.items())[:_SHOWN])
    more = f", {len(groups) - _SHOWN} more groups" if len(groups) > _SHOWN else ""
    alone = len(manifest.players) - len(groups)
    line = sizes + more + (f" and {alone} features" if alone else "")
    return line + ("; each one player" if kind == "player" else "; each the sum of its features")


def _measured_lines(manifest: "Manifest") -> Iterator[tuple[str, str]]:
    m = manifest.measured
    yield "original outputs", f"unchanged to {m.outputs_error:.1e} of the largest"
    if m.completeness_gap is not None:
        yield (
            "completeness gap",
            f"{m.completeness_gap:.1e} of the largest difference, on {m.rows} rows"
            + (f"; {m.gap_in_standard_errors:.1f} standard errors" if m.gap_in_standard_errors else ""),
        )
    elif manifest.completeness_gap is not None:
        yield "completeness gap", "not measured: the output does not move on the rows of the check"
    if m.rows_error is not None:
        yield "batch or row by row", f"equal to {m.rows_error:.1e}"
    if m.runtime_error is not None:
        yield "beside ONNX Runtime", f"equal to {m.runtime_error:.1e} of the largest"
    if m.probe_rows:
        answered = "" if m.drift is None else f", answered to {m.drift:.1e} of the range"
        yield "probe rows", f"{m.probe_rows}{answered}"
    yield "graph", f"{m.nodes} nodes, {m.model_bytes / 1e6:.1f} MB, {m.latency_ms:.2f} ms a row here"
    yield "memory", memory_line(manifest.memory)
    if manifest.variants.taken:
        yield "variants", _variants_line(manifest.variants)


def _targets(manifest: "Manifest") -> str:
    if isinstance(manifest.targets, str):
        return f"targets: {manifest.targets}"
    words = ", ".join(map(str, manifest.targets))
    one_of_two = len(manifest.targets) == 1 and words.isdecimal() and manifest.explained_shape == (2,)
    labels = any(spec.datatype in ("INT64", "BYTES") and spec.is_column for spec in manifest.outputs)
    return f"targets: {words}" + f", {'class' if labels else 'element'} {words} of two" * one_of_two


def memory_line(memory: "Memory") -> str:
    """Return the chosen chunks and storage, and their cost."""
    from rationale.schema.machine import format_bytes

    line = f"about {format_bytes(memory.needed)} for one row, of a budget of {format_bytes(memory.budget)}"
    if memory.chunk is not None:
        line += f"; {memory.chunks} chunks of {memory.chunk}"
        line += f", {memory.recomputed:.0%} of their forward pass recomputed" * bool(memory.recomputed)
    if memory.storage_error is not None:
        line += f"; stored in {memory.storage}, an error of {memory.storage_error:.1e} of the largest"
    return line
