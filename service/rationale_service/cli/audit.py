"""`rationale audit`: maintenance of the audit trail of decisions."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rationale.errors import InvalidOptionError
from rationale.terminal import progress_bar
from rationale_service.cli.reporting import reporting_errors

if TYPE_CHECKING:
    from rationale_service.decisions.audit.ledger import Ledger
    from rationale_service.settings import Settings

app = typer.Typer(
    name="audit",
    help="Verify, export and prune the audit trail: verify, heads, export, acts, prune, erase.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Repository = Annotated[
    str | None,
    typer.Option(
        help="The gateway's repository; its state folder contains the trail, unless RATIONALE_AUDIT names "
        "a database. Default: model_repository.",
        metavar="FOLDER|URL",
        show_default=False,
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(help="The gateway's settings file (TOML).", metavar="FILE", show_default=False),
]
Since = Annotated[
    str | None,
    typer.Option(
        help="Only rows from this time on (UTC), such as 2026-11 or 2026-11-23T12:00.", show_default=False
    ),
]
Until = Annotated[str | None, typer.Option(help="Only rows before this time (UTC).", show_default=False)]
_SHOWN = 100


@contextmanager
def open_trail(repository: str | None, config: Path | None) -> "Iterator[tuple[Ledger, Settings]]":
    """Open the trail of a gateway with these settings. Ends the command if either cannot be read."""
    with reporting_errors():
        from rationale_service.configuration import load_settings
        from rationale_service.decisions.audit.ledger import open_ledger

        settings = load_settings({"repository": repository}, config)
        ledger = open_ledger(settings)
        try:
            yield ledger, settings
        finally:
            ledger.close()


@app.command()
def verify(
    heads: Annotated[
        list[Path] | None,
        typer.Option(
            help="A file of signed heads that `rationale audit heads` printed. Repeat for several.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    public_key: Annotated[
        list[Path] | None,
        typer.Option(
            help="The public key (PEM) of the signatures of heads and erasures. Repeat for several.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    repository: Repository = None,
    config: Config = None,
) -> None:
    """Check the trail: show every row that was removed, altered, inserted or moved, or lost its key.

    The exit status is 1 if there is such a row.
    """
    with open_trail(repository, config) as (ledger, settings), progress_bar() as progress:
        from rationale_service.decisions.audit.acts import verify_acts
        from rationale_service.decisions.audit.evidence.heads import heads as ends
        from rationale_service.decisions.audit.evidence.heads import read_signed
        from rationale_service.decisions.audit.evidence.retention import months_ago
        from rationale_service.decisions.audit.evidence.signatures import PublicKey
        from rationale_service.decisions.audit.evidence.verify import ChainFault
        from rationale_service.decisions.audit.evidence.verify import verify as found

        if heads and not public_key:
            raise InvalidOptionError("--heads needs --public-key, to verify the signatures of the heads")
        keys = [PublicKey(file) for file in public_key or ()]
        signed = [head for file in heads or () for head in read_signed(file, keys)]
        months = settings.audit_retention_months
        faults: list[ChainFault] = []
        rows = 0
        for each in found(ledger.store, signed, months_ago(months) if months else None, keys):
            if isinstance(each, int):
                rows = each
                progress(_with_number(rows, "decision"), 0, 1)
            else:
                faults.append(each)
        *of_acts, acts = verify_acts(ledger.store)
        faults += [each for each in of_acts if not isinstance(each, int)]
        now = [] if faults else ends(ledger.store)
    for fault in faults[:_SHOWN]:
        print(fault)
    if faults:
        print(
            f"{_with_number(len(faults), 'fault')} in {_with_number(rows, 'decision')}"
            + f"; the first {_SHOWN} are shown" * (len(faults) > _SHOWN)
        )
        raise typer.Exit(1)
    pruned, erased = sum(head.first - 1 for head in now), sum(len(head.erased) for head in now)
    older = f"; {pruned} pruned before, as checkpoints say" if pruned else ""
    by_whom = "" if keys else " (give --public-key to check their signatures)"
    gone = f"; inputs of {erased} erased{by_whom}" if erased else ""
    administered = (
        f"; {_with_number(acts, 'act')} of administrators" if acts and isinstance(acts, int) else ""
    )
    print(f"{_with_number(rows, 'decision')}, none removed or altered{older}{gone}{administered}")


@app.command(name="heads")
def write_heads(
    key: Annotated[
        Path, typer.Option(help="Ed25519 private key (PEM) that signs the heads.", metavar="FILE")
    ],
    repository: Repository = None,
    config: Config = None,
) -> None:
    """Print the signed ends of all chains; keep them elsewhere to detect a trail that was cut."""
    with open_trail(repository, config) as (ledger, _):
        from rationale_service.decisions.audit.evidence.heads import heads, signed
        from rationale_service.decisions.audit.evidence.signatures import PrivateKey

        private = PrivateKey(key)
        print(signed(heads(ledger.store), private), end="")


@app.command()
def export(
    file: Annotated[
        Path, typer.Argument(help="File to write: .parquet, .csv, .xlsx or .jsonl.", metavar="FILE")
    ],
    since: Since = None,
    until: Until = None,
    model: Annotated[
        str | None, typer.Option(help="Only decisions of this model.", show_default=False)
    ] = None,
    application_id: Annotated[
        str | None,
        typer.Option(
            help="Only decisions on the application with this id of the lender.", show_default=False
        ),
    ] = None,
    inputs: Annotated[
        bool,
        typer.Option(
            "--inputs",
            help="Add the callers' inputs and the values of reasons, if the trail can show them.",
        ),
    ] = False,
    repository: Repository = None,
    config: Config = None,
) -> None:
    """Write decisions as a table."""
    with open_trail(repository, config) as (ledger, _):
        from rationale_service.decisions.audit.export import export as write

        written = write(ledger, file, since, until, model, application_id, with_inputs=inputs)
        print(f"{file}: {_with_number(written, 'decision')}")


@app.command()
def acts(
    since: Since = None, until: Until = None, repository: Repository = None, config: Config = None
) -> None:
    """Print the administrators' acts over the API as lines of JSON, oldest first."""
    with open_trail(repository, config) as (ledger, _):
        from rationale_service.decisions.audit.acts import open_act

        for row in ledger.store.acts(since, until):
            print(json.dumps(open_act(row), ensure_ascii=False))


@app.command()
def prune(repository: Repository = None, config: Config = None) -> None:
    """Delete decisions that are older than RATIONALE_AUDIT_RETENTION_MONTHS, as the gateway does daily."""
    with open_trail(repository, config) as (ledger, settings):
        from rationale_service.decisions.audit.evidence.retention import months_ago

        months, count = settings.audit_retention_months, 0
        while months and (pruned := ledger.store.prune(months_ago(months))):
            count += pruned
    print(f"{_with_number(count, 'decision')} deleted")


@app.command()
def erase(
    decision: Annotated[list[str], typer.Argument(help="Ids of decisions.", metavar="ID…")],
    key: Annotated[
        Path,
        typer.Option(help="Ed25519 private key (PEM) that signs the record of the erasure.", metavar="FILE"),
    ],
    repository: Repository = None,
    config: Config = None,
) -> None:
    """Erase the sealed inputs of decisions by deleting their keys, and record the erasure.

    Afterwards nobody can read these inputs, and the chain still verifies.
    """
    with open_trail(repository, config) as (ledger, _):
        from rationale_service.decisions.audit.evidence.retention import erase as delete
        from rationale_service.decisions.audit.evidence.signatures import PrivateKey

        private = PrivateKey(key)
        for each in decision:
            delete(ledger.store, each, private)
            print(f"the inputs of decision {each} are erased")


def _with_number(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"
