"""`rationale decide`, and `replay`, `receipt` and `notice` of decisions in the audit trail."""

import json
from collections.abc import Callable
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from rationale.errors import InvalidOptionError
from rationale.terminal import Panel, progress_bar
from rationale_service.cli.audit import Config, Repository, open_trail
from rationale_service.cli.reporting import reporting_errors
from rationale_service.decisions.options.options import OPTIONS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rationale_service.decisions.audit.trail import RecordedDecision
    from rationale_service.decisions.records.replay import ReplayedDecision, Replayer

app = typer.Typer()
Command = TypeVar("Command", bound=Callable[..., None])

Entries = Annotated[
    Path | None,
    typer.Option(
        help="Folder with the entry that decided, if it is no longer in the gateway's repository.",
        metavar="FOLDER",
        show_default=False,
    ),
]
Instance = Annotated[
    Path | None,
    typer.Option(
        help="JSON file with the decided instance, if the trail has only its digest. The digests must be "
        "equal.",
        metavar="FILE",
        show_default=False,
    ),
]
Decision = Annotated[str, typer.Argument(help="The decision's id.", metavar="ID")]


def _with_options(command: Command) -> Command:
    """Add the options of `:decide` to a command's signature, where typer reads them."""
    added = [
        Parameter(
            option.name,
            Parameter.KEYWORD_ONLY,
            default=typer.Option(None, f"--{option.name}", help=option.help, show_default=False),
            annotation=option.takes | None,
        )
        for option in OPTIONS
    ]
    own = [one for one in signature(command).parameters.values() if one.kind is not Parameter.VAR_KEYWORD]
    vars(command)["__signature__"] = Signature([*own, *added])
    return command


@app.command(rich_help_panel=Panel.DECIDE)
@_with_options
def decide(
    name: Annotated[str, typer.Argument(help="The model, compiled with --decision.", metavar="NAME")],
    input_: Annotated[
        str,
        typer.Option(
            "--input",
            help="Rows to decide: .csv, .parquet, .xlsx, .npz or .npy, with the columns of the model and of "
            "knock-outs. An empty cell is a missing value. For a portfolio: a folder, a pattern "
            "('loans/*.parquet') or a URL (s3://…).",
            metavar="FILE",
        ),
    ],
    save: Annotated[
        str,
        typer.Option(
            help="File to write: .csv, .parquet or .xlsx with a line for each row and its reasons in "
            "columns, or .jsonl with the answers of :decide. For a portfolio: the folder or URL for one "
            ".parquet per input file.",
            metavar="FILE",
        ),
    ],
    keep: Annotated[
        str | None,
        typer.Option(
            help="Columns of the table to copy unchanged, such as an application's id; by commas.",
            metavar="NAME,…",
            show_default=False,
        ),
    ] = None,
    application_id: Annotated[
        str | None,
        typer.Option(
            help="Column with your ids of the applications; the audit trail can be searched by them.",
            metavar="NAME",
            show_default=False,
        ),
    ] = None,
    audit: Annotated[
        bool,
        typer.Option("--audit", help="Record each decision in the gateway's audit trail before saving it."),
    ] = False,
    repository: Repository = None,
    config: Config = None,
    **options: Any,
) -> None:
    """Decide every row of one or many files, without a server.

    The numbers equal those of the gateway's :decide. If a row cannot be decided (a value that the profile
    does not allow, or no reason to give), the command saves the cause and ends with exit status 1. After an
    interruption run the same command again: it continues where it stopped (for many files, with the
    first missing output). With --audit it records no decision twice: a second run finds the earlier ones and
    prints how many are new.

    Example: rationale decide credit --input portfolio.csv --save decisions.csv --audit

    A portfolio: rationale decide credit --input 's3://loans/*.parquet' --save s3://decisions --keep id
    """
    with reporting_errors(), progress_bar() as progress:
        from rationale.portfolios.answered_files import is_portfolio
        from rationale_service.configuration import load_settings
        from rationale_service.decisions import portfolio

        many = is_portfolio(input_)
        columns = [] if keep is None else [column.strip() for column in keep.split(",")]
        settings = load_settings({"repository": repository}, config)
        trail = portfolio.trail_for(settings, audited=audit)
        if many:
            files, outcomes = portfolio.decide_files(
                settings,
                name,
                input_,
                save,
                trail,
                columns,
                progress,
                application=application_id,
                options=options,
            )
            target = str(files)
        else:
            read = portfolio.read_portfolio(
                settings, name, Path(input_), columns, application=application_id, options=options
            )
            outcomes = portfolio.decide_portfolio(read, settings, Path(save), trail, progress)
            target = save
    undecided = bool(outcomes.counts[portfolio.WITHOUT])
    print(f"{target}: {outcomes}" + "; its column fault says why" * undecided)
    raise typer.Exit(undecided)


@app.command(rich_help_panel=Panel.DECIDE)
def replay(
    decision: Annotated[
        str | None, typer.Argument(help="The decision's id.", metavar="ID", show_default=False)
    ] = None,
    entries: Entries = None,
    repository: Repository = None,
    config: Config = None,
    instance: Instance = None,
    since: Annotated[
        str | None,
        typer.Option(
            help="Replay all decisions from this time on (such as 2026-11-22) instead of ID.",
            metavar="TIME",
            show_default=False,
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            help="With --since: only decisions before this time.", metavar="TIME", show_default=False
        ),
    ] = None,
) -> None:
    """Compute an old decision again from the files that made it, and compare.

    The command finds the entry in the repository by its recorded digests, even under a new name. On the same
    runtime (ONNX Runtime's version, threads, processor) every number must be equal bit for bit; on another,
    within 1e-4 of the largest. It prints which comparison it used, and ends with exit status 1 if a number
    differs.

    Example: rationale replay 5f0c… --entries archive/2026-05
    """
    with open_trail(repository, config) as (ledger, settings):
        if (decision is None) == (since is None):
            raise InvalidOptionError("give the ID of a decision, or --since TIME for all since then")
        if until is not None and since is None:
            raise InvalidOptionError("--until: only with --since TIME")
        if instance is not None and decision is None:
            raise InvalidOptionError("--instance: only with the ID of its decision")
        from rationale_service.decisions.records.replay import Replayer

        replayer = Replayer(settings, entries)
        if decision is not None:
            record = ledger.read(decision, _read(instance))
            is_same = _replay_one(replayer.replay(record, ledger.first_of(record)))
        else:
            is_same = _replay_all(replayer, ledger.in_order(since, until), ledger.first_of)
    raise typer.Exit(0 if is_same else 1)


@app.command(rich_help_panel=Panel.DECIDE)
def receipt(
    decision: Decision,
    out: Annotated[
        Path | None,
        typer.Option(
            help="New folder for the receipt. Default: receipt-ID in the current folder.",
            metavar="FOLDER",
            show_default=False,
        ),
    ] = None,
    entries: Entries = None,
    repository: Repository = None,
    config: Config = None,
    instance: Instance = None,
) -> None:
    """Write a folder with which anybody can check a decision, without Rationale or the lender.

    It contains the request, the answer, the graph that decided, the decision profile, and check.py. That
    script needs only onnxruntime and numpy: it computes score, attributions and reasons again and compares.

    The graph contains the references, which may be people's rows. If receipts leave your company, compile
    with references that are not people's rows, such as centroids.

    Example: rationale receipt 5f0c… --out receipt && python receipt/check.py
    """
    with open_trail(repository, config) as (ledger, settings):
        from rationale_service.decisions.records.receipt import write_receipt
        from rationale_service.decisions.records.replay import Replayer

        record = ledger.read(decision, _read(instance))
        folder = out or Path(f"receipt-{record.id}")
        entry = None if record.kind == "judgment" else Replayer(settings, entries).entry(record)
        write_receipt(record, entry, folder, ledger.case_of(record))
        check = f"python {folder / 'check.py'} computes the decision again"
        print(f"{folder}: {'a person judged, and nothing is computed' if entry is None else check}")


@app.command(rich_help_panel=Panel.DECIDE)
def notice(
    decision: Decision,
    template: Annotated[
        str,
        typer.Option(
            help="adverse-action (Regulation B, FCRA 615(a)), eu-consumer-credit (directive 2023/2225), or "
            "a Jinja template of your own.",
            metavar="NAME|FILE",
        ),
    ] = "adverse-action",
    variables: Annotated[
        Path | None,
        typer.Option(
            help="YAML or JSON file with the template's variables: creditor, applicant, agency …",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="One variable, such as applicant.name='Jo Doe'. Repeat the option for more; it overrides "
            "the file.",
            metavar="NAME=VALUE",
            show_default=False,
        ),
    ] = None,
    person_declined: Annotated[
        bool,
        typer.Option(
            "--person-declined",
            help="Write the notice of a referral that a person then declined; the variable judgment lists "
            "the person's reasons.",
        ),
    ] = False,
    language: Annotated[
        str | None,
        typer.Option(
            help="A language of the decision profile, such as de. Default: the profile's first language.",
            metavar="LANGUAGE",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="File to write. Default: print the notice.", metavar="FILE", show_default=False),
    ] = None,
    entries: Entries = None,
    instance: Instance = None,
    repository: Repository = None,
    config: Config = None,
) -> None:
    """Write the statement of a decline's principal reasons for its applicant.

    The templates of Rationale are drafts for your counsel, not legal advice: docs/notices.md tells which
    parts are law.

    Example: rationale notice 5f0c… --variables lender.yaml --set applicant.name='Jo Doe' --out notice.txt
    """
    with open_trail(repository, config) as (ledger, settings):
        from rationale.artifact.repository.folder import atomic_file
        from rationale.decisions.notice import LOST_PROFILE, MissingVariablesError, read_variables
        from rationale.errors import InvalidOptionError, RepositoryError
        from rationale_service.decisions.records.cases import standing_notice
        from rationale_service.decisions.records.replay import Replayer

        inputs = read_variables(variables, set_ or ())
        record = ledger.read(decision, _read(instance))
        try:
            profile = Replayer(settings, entries).profile(record)
        except RepositoryError:
            profile = None
        try:
            statement = standing_notice(
                record,
                ledger.case_of(record),
                inputs,
                template,
                person_declined=person_declined,
                profile=profile,
                language=language,
            )
        except MissingVariablesError as error:
            raise InvalidOptionError(f"{error} (--variables FILE, or --set NAME=VALUE for one)") from error
        for warning in (*([LOST_PROFILE] if profile is None else []), *statement.warnings):
            typer.echo(f"warning: {warning}", err=True)
        if out is None:
            print(statement.text, end="")
            return
        with atomic_file(out) as file:
            file.write_text(statement.text, encoding="utf-8")


def _read(file: Path | None) -> dict[str, Any] | None:
    """Read an instance, alone or as the only one of a request. Raises InvalidOptionError."""
    if file is None:
        return None
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidOptionError(f"--instance {file}: cannot be read as JSON: {error}") from error
    if (
        isinstance(content, dict)
        and isinstance(content.get("instances"), list)
        and len(content["instances"]) == 1
    ):
        content = content["instances"][0]
    if not isinstance(content, dict):
        raise InvalidOptionError(f'--instance {file}: must be an object such as {{"income": 58000}}')
    return content


def _replay_one(replayed: "ReplayedDecision") -> bool:
    decision, answer = replayed.decision, replayed.decision.answer
    print(f"decision {decision.id} of {decision.model}, {decision.time}")
    score = f"score {answer['score']}" if replayed.entry else f"a person's judgment ({answer['reviewer']})"
    print(f"answered: {answer['decision']}, {score}, {len(answer['reasons'])} reasons")
    if replayed.entry is not None:
        print(f"entry:    {replayed.entry.model_path.parent.parent}")
    for each in replayed.elsewhere:
        print(f"runtime:  {each}")
    if replayed.passed_over:
        print(f"not computed again: {', '.join(replayed.passed_over)}")
    for each in replayed.differences:
        print(f"DIFFERS   {each}")
    if not replayed.differences:
        print(_likeness(replayed))
    return not replayed.differences


def _likeness(replayed: "ReplayedDecision") -> str:
    from rationale_service.decisions.records.replay import TOLERANCE

    if replayed.entry is None:
        return "a person judged: nothing is computed, and the link to the first decision is right"
    if replayed.elsewhere:
        return f"the same decision on another runtime: equal within {TOLERANCE:g} of the largest number"
    return "the same decision on the same runtime: equal bit for bit"


def _replay_all(
    replayer: "Replayer",
    decisions: "Iterable[RecordedDecision]",
    first_of: "Callable[[RecordedDecision], RecordedDecision | None]",
) -> bool:
    """Print a line for each decision that differs or cannot be replayed, and the number of each kind."""
    from collections import Counter

    from rationale.errors import RationaleError

    counts: Counter[str] = Counter()
    for decision in decisions:
        if decision.kind == "contest":
            continue
        if decision.instance is None and decision.kind == "decision":
            counts["without inputs"] += 1
            continue
        try:
            replayed = replayer.replay(decision, first_of(decision))
        except RationaleError as error:
            counts["not replayed"] += 1
            print(f"{decision.id}: not replayed: {error}")
            continue
        for each in replayed.differences:
            print(f"{decision.id}: DIFFERS: {each}")
        kind = "equal within tolerance, on another runtime" if replayed.elsewhere else "equal bit for bit"
        kind = "judged by a person" if replayed.entry is None else kind
        counts["different" if replayed.differences else kind] += 1
    print("; ".join(f"{count} {kind}" for kind, count in sorted(counts.items())) or "no decisions")
    return not counts["different"] and not counts["not replayed"]
