"""`rationale keys new`: make a key for callers of the gateway."""

import datetime
import os
from pathlib import Path
from typing import Annotated

import typer

from rationale.errors import InvalidOptionError
from rationale_service.cli.reporting import reporting_errors

app = typer.Typer(
    name="keys",
    help="Make the keys that callers of the gateway send: new.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def _keys() -> None:
    """Keys of the gateway."""  # a group even while it holds one command


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="Name of the key, which logs show.", metavar="NAME")],
    scope: Annotated[
        list[str],
        typer.Option(
            help="What the key allows: infer, explain, decide, recourse, review, audit or admin. Repeat it "
            "for several."
        ),
    ],
    file: Annotated[
        Path | None,
        typer.Option(
            help="Add the key to this file (RATIONALE_KEYS_FILE), which is created if missing. Default: "
            "print the lines for such a file.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    expires: Annotated[
        datetime.datetime | None,
        typer.Option(
            help="First day on which the key is invalid, such as 2027-01-31. Default: it never expires.",
            formats=["%Y-%m-%d"],
            show_default=False,
        ),
    ] = None,
) -> None:
    """Make a key and print it once; the key file stores only its SHA-256.

    A running gateway reads the file again within seconds.
    """
    with reporting_errors():
        # Imported here: pydantic would take a third of every command's start.
        from rationale_service.security.keys import Scope, new_key

        unknown = [each for each in scope if each not in list(Scope)]
        if unknown:
            raise InvalidOptionError(f"--scope {unknown[0]}: choose {', '.join(Scope)}")
        token, table = new_key(name, map(Scope, scope), expires.date() if expires else None)
        if file is None:
            print(table)
        else:
            _add(file, name, table)
    print(token)


def _add(file: Path, name: str, table: str) -> None:
    from rationale_service.security.keys import read_keyring

    if not file.exists():
        _replace(file, table)
        return
    keys = read_keyring(file, None, admin_is_local=True).keys.values()
    if name in [caller.name for caller, _ in keys]:
        raise InvalidOptionError(
            f"{file} has a key '{name}' already: choose another name, or remove that key first"
        )
    _replace(file, f"{file.read_text().rstrip()}\n\n{table}")


def _replace(file: Path, text: str) -> None:
    """Replace the file atomically, so that a gateway never reads half of it; only its owner may read it."""
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
            stream.write(text)
        partial.replace(file)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise InvalidOptionError(f"cannot write {file}: {error.strerror}") from error
