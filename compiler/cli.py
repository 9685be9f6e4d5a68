"""The compiler's commands of `rationale`; the service adds its own."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from compiler.errors import InvalidOptionError, RationaleError

if TYPE_CHECKING:
    from rich.console import Console

    from compiler.manifest import Manifest
    from compiler.methods import Method
    from compiler.targets import Targets

app = typer.Typer(
    name="rationale",
    help="Why did the model decide this? Compiles an ONNX model into one graph that answers with the "
    "prediction and its explanation, and serves it.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)

Repository = Annotated[Path, typer.Option(help="The model repository.", metavar="FOLDER")]


@contextmanager
def told_plainly() -> Iterator[None]:
    """Turns this project's errors into a line on stderr and exit status 2."""
    try:
        yield
    except RationaleError as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(2) from error


@app.command("compile")
def compile_command(
    model: Annotated[Path, typer.Argument(help="The ONNX model.", metavar="MODEL.onnx", show_default=False)],
    name: Annotated[
        str,
        typer.Option(help="Name of the entries NAME and NAME_explain.", metavar="NAME", show_default=False),
    ],
    method: Annotated[
        str,
        typer.Option(
            help="deepshap, gradient, input-x-gradient, integrated-gradients, expected-gradients, "
            "smoothgrad, lrp, attnlrp or cplrp."
        ),
    ] = "deepshap",
    references: Annotated[
        Path | None,
        typer.Option(
            help="Rows that stand for 'nothing special', against which a decision is explained: .npz (an "
            "array for each input), .npy, .csv or .parquet. deepshap and expected-gradients need them; 50 to "
            "200 typical rows are usual. integrated-gradients takes zeros without them.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    repository: Repository = Path("model_repository"),
    targets: Annotated[
        str | None,
        typer.Option(
            help="Which elements of the output to explain: indices such as 0,3, 'all', or 'predicted' (each "
            "row's own largest). Default: the only element, else predicted.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            help="The tensor to explain, inner ones too (the logits before a Softmax). Default: the first "
            "float output.",
            metavar="TENSOR",
            show_default=False,
        ),
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input", help="An input to attribute to; repeat for several. Default: all.", show_default=False
        ),
    ] = None,
    features: Annotated[
        str | None,
        typer.Option(
            help="Feature names, by commas; they also choose the columns of a table that has more. Default: "
            "the headers of the reference file.",
            metavar="A,B,C",
            show_default=False,
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            help="integrated-gradients: points on the path from a reference. Default: 50.", show_default=False
        ),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(
            help="expected-gradients: draws of a reference and a point (default 200); smoothgrad: noisy "
            "copies (default 50).",
            show_default=False,
        ),
    ] = None,
    sigma: Annotated[
        float | None,
        typer.Option(
            help="smoothgrad: standard deviation of the noise, in the input's own units.", show_default=False
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of the draws. Default: 0.", show_default=False)] = None,
    standard_error: Annotated[
        bool,
        typer.Option(
            "--standard-error",
            help="Also return how far each attribution may be off because it is a mean over few references "
            "or draws.",
        ),
    ] = False,
    composite: Annotated[
        str | None,
        typer.Option(
            help="lrp: the preset of rules; EpsilonPlus (default), EpsilonAlpha2Beta1, EpsilonPlusFlat, "
            "EpsilonAlpha2Beta1Flat, EpsilonGammaBox (needs --low and --high), ExcitationBackprop, "
            "GuidedBackprop or Deconvnet.",
            show_default=False,
        ),
    ] = None,
    rule: Annotated[
        list[str] | None,
        typer.Option(
            help="lrp: a rule for some layers, such as Conv=gamma:0.25, name:head.*=epsilon:0.1, "
            "first=zbox:-2:2 or 'last 2=zero'; repeat for several, the last match wins.",
            metavar="SELECTOR=RULE",
            show_default=False,
        ),
    ] = None,
    low: Annotated[
        float | None, typer.Option(help="lrp: the least value an input may take.", show_default=False)
    ] = None,
    high: Annotated[
        float | None, typer.Option(help="lrp: the largest value an input may take.", show_default=False)
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(
            help="attnlrp, cplrp: what is added to denominators; it absorbs relevance. Default: 1e-6.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Compile MODEL.onnx and its explanation into a model repository.

    Writes two entries that `rationale serve` and Triton serve as they are: NAME, the plain model, and
    NAME_explain, one graph that also returns attributions, base value and completeness gap. Nothing is
    written unless the graph reproduces the model and its attributions add up.

    Example: rationale compile credit.onnx --references approved.csv --name credit
    """
    with told_plainly():
        from compiler.compile import compile_model
        from compiler.repository import check_name

        check_name(name)
        names = None if features is None else [f.strip() for f in features.split(",")]
        options: dict[str, Any] = {"steps": steps, "samples": samples, "sigma": sigma, "seed": seed}
        options |= {"standard_error": standard_error or None, "rule": rule or None}
        options |= {"composite": composite, "low": low, "high": high, "epsilon": epsilon}
        chosen, columns = _method(method, references, names, options)
        with _progress() as progress:
            compiled = compile_model(
                model,
                chosen,
                output=output,
                targets=_targets(targets),
                inputs=inputs,
                feature_names=names or columns,
                progress=progress,
            )
            entry = compiled.write(repository, name)
        _report(compiled.manifest)
        print(f"wrote {entry.parent / name} and {entry}")


def _targets(text: str | None) -> "Targets":
    words: dict[str | None, Targets] = {None: None, "all": "all", "predicted": "predicted"}
    if text is None or text in words:
        return words[text]
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise InvalidOptionError(
            f"--targets {text!r}: give indices by commas, 'all' or 'predicted'."
        ) from error


def _method(
    name: str, references: Path | None, columns: list[str] | None, options: Mapping[str, Any]
) -> "tuple[Method, list[str] | None]":
    """The method by its name on the command line, and the reference file's column names."""
    from compiler.methods.options import REFERENCES, check_options, make_method
    from compiler.tables import read_rows

    if references is None:
        return make_method(name, None, options), None
    check_options(name, {REFERENCES, *(key for key, value in options.items() if value is not None)})
    table = read_rows(references, columns)
    arrays = table.arrays[None] if None in table.arrays else {str(k): v for k, v in table.arrays.items()}
    return make_method(name, arrays, options), list(table.columns) if table.columns else None


@contextmanager
def _progress() -> "Iterator[Callable[[str, int, int], None]]":
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:<30}"), BarColumn(bar_width=30), TimeElapsedColumn())
    with Progress(
        *columns, console=_console(stderr=True), transient=True, disable=not sys.stderr.isatty()
    ) as bar:
        task = bar.add_task("", total=1)
        yield lambda stage, done, total: bar.update(task, description=stage, completed=done, total=total)


def _console(stderr: bool = False) -> "Console":
    """Wide enough for every line where nobody looks at it in a terminal; names are printed as they are."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else 200
    return Console(stderr=stderr, width=width, markup=False, highlight=False, emoji=False)


def _report(manifest: "Manifest") -> None:
    """What was measured, in a few lines."""
    from rich.table import Table

    m = manifest.measured
    table = Table(show_header=False, box=None, pad_edge=False)
    names = ", ".join(e.tensor.name for e in manifest.explained)
    targets = manifest.targets if isinstance(manifest.targets, str) else ", ".join(map(str, manifest.targets))
    table.add_row(
        "explains", f"{manifest.explained_output} (targets: {targets}) by {names}, {manifest.method.name}"
    )
    if manifest.references:
        merged = manifest.references.given - manifest.references.count
        table.add_row(
            "references", f"{manifest.references.count}" + (f" ({merged} equal ones merged)" * bool(merged))
        )
    table.add_row("original outputs", f"unchanged to {m.outputs_error:.1e} of the largest")
    if m.completeness_gap is not None:
        table.add_row(
            "completeness gap",
            f"{m.completeness_gap:.1e} of the largest difference, {m.rows} probe rows"
            + (f"; {m.gap_in_standard_errors:.1f} standard errors" if m.gap_in_standard_errors else ""),
        )
    table.add_row("batch or row by row", f"equal to {m.rows_error:.1e}")
    table.add_row("graph", f"{m.nodes} nodes, {m.model_bytes / 1e6:.1f} MB, {m.latency_ms:.2f} ms a row here")
    _console().print(table)
    for warning in manifest.warnings:
        print(f"warning: {warning}", file=sys.stderr)


@app.command("explain")
def explain_command(
    name: Annotated[str, typer.Argument(help="The entry's name.", show_default=False)],
    input_file: Annotated[
        Path,
        typer.Option(
            "--input",
            help="Rows to explain: .npz, .npy, .csv or .parquet.",
            metavar="FILE",
            show_default=False,
        ),
    ],
    repository: Repository = Path("model_repository"),
    save: Annotated[
        Path | None,
        typer.Option(
            help="Write every tensor of the answer to this .npz.", metavar="FILE", show_default=False
        ),
    ] = None,
    top: Annotated[int, typer.Option(help="Show this many features of each row.", min=1)] = 10,
) -> None:
    """Explain the rows of a file with a compiled entry, without a server."""
    with told_plainly():
        from compiler.local import explain_file

        explain_file(repository, name, input_file, save, top)


@app.command("check")
def check_command(
    name: Annotated[str, typer.Argument(help="The entry's name.", show_default=False)],
    repository: Repository = Path("model_repository"),
) -> None:
    """Measure a written entry again: outputs unchanged, attributions complete, rows apart."""
    with told_plainly():
        from compiler.local import check_entry

        _report(check_entry(repository, name))


@app.command("evaluate")
def evaluate_command(
    names: Annotated[
        list[str],
        typer.Argument(help="One entry, or several to compare.", metavar="NAME", show_default=False),
    ],
    input_file: Annotated[
        Path,
        typer.Option(
            "--input",
            help="Rows to judge on, two or more: .npz, .npy, .csv or .parquet.",
            metavar="FILE",
            show_default=False,
        ),
    ],
    repository: Repository = Path("model_repository"),
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write evaluation.csv, evaluation.json and plots to this folder.",
            metavar="FOLDER",
            show_default=False,
        ),
    ] = None,
    references: Annotated[
        list[Path] | None,
        typer.Option(
            help="The references an entry was compiled with, for the randomised-weights check; repeat for "
            "several. Without them that check is left out where the method has references.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    rows: Annotated[int, typer.Option(help="Judge on this many rows, drawn from the file.", min=1)] = 100,
    seed: Annotated[int, typer.Option(help="Of all draws: the same seed, the same numbers.", min=0)] = 0,
    perturbation: Annotated[
        str, typer.Option(help="Of infidelity: baseline (features replaced) or gaussian (for slopes).")
    ] = "baseline",
    radius: Annotated[
        float, typer.Option(help="Of max-sensitivity, in standard deviations of each feature in the file.")
    ] = 0.1,
) -> None:
    """Measure how faithful explanations are to their model: one entry, or several to compare.

    Deletion and insertion curves beside random orders, infidelity, max-sensitivity, and the correlation with
    the explanations of the same model with redrawn weights. docs/evaluation.md says what each number means:
    they judge faithfulness to the model, not to the world.

    Example: rationale evaluate credit --input applicants.csv --references approved.csv --out report
    """
    with told_plainly():
        from compiler.evaluate import Settings, evaluate
        from compiler.report import check_folder, show, write_report

        if out is not None:
            check_folder(out)
        settings = Settings(rows, seed, perturbation, radius)
        with _progress() as progress:
            done = evaluate(repository, names, input_file, references or (), settings, progress)
        _console().print(show(done))
        written, notes = write_report(done, settings, input_file, out)
        for note in notes:
            print(note, file=sys.stderr)
        if out is not None:
            print(f"wrote {', '.join(written)} to {out}")


@app.command("operators")
def operators_command() -> None:
    """List the operators that can be explained, with their kinds."""
    from rich.table import Table

    from compiler.operators import operator_table

    table = Table("operator", "kind", "how", box=None, pad_edge=False)
    for row in operator_table():
        table.add_row(row.name, row.kind, row.how)
    _console().print(table)
