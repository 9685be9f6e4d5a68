"""The compiler's commands of `rationale`; the service adds its own."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rationale.cli import compile_options as given
from rationale.cli import decisions, entries, recourse, references
from rationale.schema.methods import takes_seed
from rationale.terminal import Panel, Repository, progress_bar, report, reporting_errors

if TYPE_CHECKING:
    from rationale.schema.request import CompileRequest

app = typer.Typer(
    name="rationale",
    help="Why did the model decide this? Compiles an ONNX model into one graph that answers with the "
    "prediction and its explanation, and serves it.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


@app.command("compile", rich_help_panel=Panel.EXPLAIN)
@given.with_method_options
def compile_command(
    model: given.Model,
    name: given.Name,
    method: given.Method = "deepshap",
    repository: Repository = Path("model_repository"),
    references: given.References = None,
    open_references: given.OpenReferences = None,
    decision: given.Decision = None,
    compare: given.Compare = None,
    draws: given.Draws = 0,
    targets: given.Targets = None,
    output: given.Output = None,
    logits: given.Logits = False,
    inputs: given.Inputs = None,
    layers: given.Layers = None,
    concepts: given.Concepts = None,
    concept_axis: given.ConceptAxis = None,
    features: given.Features = None,
    group: given.Group = None,
    size: given.Size = None,
    allow_pickle: given.AllowPickle = False,
    allow_parity: given.AllowParity = None,
    missing: given.Missing = None,
    categories: given.Categories = None,
    custom_ops: given.CustomOps = None,
    provider: given.Provider = "cpu",
    runtime: given.Runtime = "onnxruntime",
    threads: given.Threads = None,
    memory_budget: given.MemoryBudget = "4GB",
    storage: given.Storage = "float32",
    one_shot: given.OneShot = False,
    **method_options: Any,
) -> None:
    """Compile MODEL and its explanation into a model repository.

    Writes two entries that `rationale serve` and Triton serve as they are: NAME, the plain model, and
    NAME_explain, one graph that also returns attributions, base value and completeness gap. Nothing is
    written unless the graph reproduces the model and its attributions add up. With --one-shot both are one
    entry, NAME.

    Example: rationale compile credit.onnx --references approved.csv --name credit
    """
    given_options = {**locals(), **method_options}
    with reporting_errors():
        from rationale.artifact.repository import check_name
        from rationale.from_files import compile_files

        check_name(name)
        request = _request(given_options, method_options)
        with progress_bar() as progress:
            compiled = compile_files(request, model, references, progress)
            entry = compiled.write(repository, name)
        if compiled.conversion is not None:
            print(compiled.conversion)
        report(compiled.manifest)
        print(f"wrote {entry}" if one_shot else f"wrote {entry.parent / name} and {entry}")
        if compiled.comparisons:
            kinds = [one.name for one in compiled.comparisons if one.kind == "baseline"]
            kinds += [f"{draws} draws of the references"] * bool(draws)
            print(f"wrote {len(compiled.comparisons)} comparisons beside: {', '.join(kinds)}")


def _request(given: Mapping[str, Any], method_options: Mapping[str, Any]) -> "CompileRequest":
    """Return the request that the options describe; raise InvalidOptionError if they make no sense."""
    from rationale.schema.machine import Deployment, parse_bytes
    from rationale.schema.request import (
        CompileRequest,
        parse_compare,
        parse_concepts,
        parse_features,
        parse_groups,
        parse_layers,
        parse_sizes,
        parse_targets,
    )

    options = {name: value for name, value in method_options.items() if value is not False and value != []}
    if given["draws"] and not takes_seed(given["method"]):
        options["seed"] = None  # it belongs to the draws alone
    same = CompileRequest.model_fields.keys() & given.keys() - {"targets", "layers", "concepts", "compare"}
    return CompileRequest(
        **{name: given[name] for name in same - {"features", "custom_ops"}},
        options=options,
        targets=parse_targets(given["targets"]),
        features=parse_features(given["features"] or []),
        groups=parse_groups(given["group"] or []),
        sizes=parse_sizes(given["size"] or []),
        layers=parse_layers(given["layers"] or []),
        concepts=parse_concepts(given["concepts"], given["concept_axis"]),
        custom_ops=tuple(given["custom_ops"] or ()),
        compare=parse_compare(given["compare"] or []),
        draws_seed=given["seed"] or 0,
        deployment=Deployment(
            given["provider"],
            given["threads"],
            parse_bytes(given["memory_budget"]),
            given["storage"],
            given["one_shot"],
            given["runtime"],
        ),
    )


app.add_typer(entries.app)
app.add_typer(references.app)
app.add_typer(recourse.app)
app.add_typer(decisions.app, name="decisions", rich_help_panel=Panel.DECIDE)


@app.command(
    "bench",
    rich_help_panel=Panel.LOOK_UP,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def bench_command(context: typer.Context) -> None:
    """Say how to time explanations beside the plain model, SHAP and captum: from a checkout.

    The benchmarks need torch and the peers' libraries, so they are in the repository and not in the wheel.
    All arguments are those of `python -m benchmarks`.

    Example: rationale bench credit --peers ort-forward,shap
    """
    command = shlex.join(["python", "-m", "benchmarks", *context.args])
    print(
        "The benchmarks are in this project's repository. In a checkout of it:\n\n"
        f"    pip install -e '.[bench]'\n    {command}\n\n"
        "`python -m benchmarks --help` lists models, sizes and peers, docs/performance.md the other commands."
    )
