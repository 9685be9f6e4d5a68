"""The command line `rationale`: the compiler's commands, and the service's."""

from collections.abc import Callable
from importlib import import_module
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any

import typer

from rationale.cli.compile import app as app
from rationale.distribution import version
from rationale.terminal import Panel
from rationale_service.cli.audit import app as audit_app
from rationale_service.cli.backup import app as backup_app
from rationale_service.cli.decisions import app as decisions_app
from rationale_service.cli.keys import app as keys_app
from rationale_service.cli.kserve import app as kserve_app
from rationale_service.cli.reporting import reporting_errors
from rationale_service.cli.running import run_gateway
from rationale_service.cli.triton import app as triton_app

app.add_typer(triton_app, name="triton", rich_help_panel=Panel.SERVE)
app.add_typer(keys_app, name="keys", rich_help_panel=Panel.SERVE)
app.add_typer(audit_app, name="audit", rich_help_panel=Panel.DECIDE)
app.add_typer(decisions_app)
app.add_typer(backup_app)
app.add_typer(kserve_app)

Command = Callable[..., None]
# Settings with a flag: name of its value, and its help text. The settings themselves check the values.
FLAGS = {
    "repository": (
        "FOLDER|URL",
        "Folder with the compiled models, or a URL (s3://…), which the gateway copies into its state. "
        "Default: model_repository.",
    ),
    "strict": (
        None,
        "Do not start if an entry is broken. Default: serve the others, and log the broken one.",
    ),
    "watch_s": (
        "SECONDS",
        "Interval for picking up added, changed and removed entries of the repository. "
        "Default: only on SIGHUP or by the admin API.",
    ),
    "device": (
        "auto|cpu|cuda",
        "Device of the models: cpu, cuda, or auto, which follows each instance_group. Default: auto.",
    ),
    "host": ("ADDRESS", "Address to listen on. Default: 127.0.0.1, this machine only."),
    "port": ("PORT", "Port to listen on; 0 takes a free one. Default: 8080."),
    "grpc_port": (
        "PORT|off",
        "Port for gRPC; 0 takes a free one, off disables gRPC. Default: 8081, or a free one with --port 0.",
    ),
    "workers": (
        "N",
        "Processes that serve on the same ports; each loads all models. One process uses one core for "
        "everything except the models' computation. Default: 1.",
    ),
    "triton": (
        "HOST:PORT",
        "Run the models in the Triton server at this gRPC address, such as localhost:8001, which serves the "
        "same repository. Default: run them in this process.",
    ),
    "keys_file": (
        "FILE",
        "File with the callers' keys, from `rationale keys new`. Default: none, so everybody may call.",
    ),
    "admin_port": (
        "PORT",
        "Separate port for the admin API and /metrics, on this machine only unless RATIONALE_ADMIN_HOST "
        "is set; 0 takes a free one. Default: they are on --port.",
    ),
    "tls_cert": ("FILE", "Certificate chain (PEM). HTTP and gRPC then accept only TLS."),
    "tls_key": ("FILE", "Private key of --tls-cert (PEM)."),
    "tls_client_ca": ("FILE", "Mutual TLS: callers need a certificate signed by this authority (PEM)."),
}
Config = Annotated[
    Path | None,
    typer.Option(
        help="TOML file with settings, such as `port = 9000`. Flags and environment variables come first.",
        metavar="FILE",
        show_default=False,
    ),
]


def flag(setting: str) -> str:
    """Return the flag of a setting in FLAGS."""
    return f"--{setting.removesuffix('_s').replace('_', '-')}"


def _with_flags(command: Command) -> Command:
    """Add FLAGS as options to a command's signature, where typer reads them."""

    def parameter(setting: str, metavar: str | None, text: str) -> Parameter:
        option = typer.Option(None, flag(setting), help=text, metavar=metavar, show_default=False)
        kind = bool | None if metavar is None else str | None
        return Parameter(setting, Parameter.KEYWORD_ONLY, default=option, annotation=kind)

    config = Parameter("config", Parameter.KEYWORD_ONLY, default=None, annotation=Config)
    flags = [parameter(setting, *of_setting) for setting, of_setting in FLAGS.items()]
    vars(command)["__signature__"] = Signature([*flags, config])
    return command


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"rationale {version()}")
        raise typer.Exit


@app.callback()
def options(
    _: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """Take the options that all commands share."""


@app.command(rich_help_panel=Panel.SERVE)
@_with_flags
def serve(config: Path | None, **flags: Any) -> None:
    """Serve predictions and explanations over HTTP and gRPC.

    Over HTTP the gateway answers the Open Inference Protocol under /v2 (with the verb explain added) and
    KServe's v1 with named features under /v1; /docs describes both. Over gRPC it answers the Open Inference
    Protocol; MODEL_explain explains MODEL. It prints its addresses after it has loaded and warmed all models.
    SIGTERM and Ctrl-C finish the running requests, then exit; SIGHUP reads the repository, keys and
    certificates again.

    Each flag can also be an environment variable, RATIONALE_REPOSITORY, RATIONALE_PORT …, or a line of the
    --config file; some settings have no flag. docs/settings.md leads to all of them.
    """
    run_gateway(flags, config)


@app.command(rich_help_panel=Panel.EXPLAIN)
def demo() -> None:
    """Show the whole path: compile a small credit model, serve it, ask over HTTP, explain its decisions."""
    from rationale_service.cli.demo import run_demo

    with reporting_errors():
        import_module(
            "rationale_service.settings"
        )  # before a model is compiled for a gateway that cannot start
    raise typer.Exit(run_demo())
