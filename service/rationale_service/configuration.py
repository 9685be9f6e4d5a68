"""Sources of settings: flags over environment variables over a TOML file over defaults."""

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rationale.conversion.files import ALLOW_PICKLE
from rationale.errors import InvalidOptionError, near
from rationale.schema.machine import KERNELS
from rationale_service.settings import PREFIX, Settings

CONFIG = "RATIONALE_CONFIG"
# Variables that are no settings: default and meaning, for the manual.
OTHER_VARIABLES = {
    CONFIG: ("none", "TOML file with the gateway's settings, if `--config` names none."),
    KERNELS: ("on", "`off` leaves the package `rationale-kernels` alone ([kernels](../kernels.md))."),
    ALLOW_PICKLE: ("off", "`1` lets commands read pickles without `--allow-pickle` ([trees](../trees.md))."),
}


def load_settings(flags: Mapping[str, Any], config: Path | None = None) -> Settings:
    """Return the settings of a gateway.

    Args:
        flags: values by setting name; None for a flag that the user left out.
        config: settings file; None for the file that RATIONALE_CONFIG names, if any.

    Raises:
        InvalidOptionError: if the file cannot be read, one of its keys is no setting, or a value is invalid.
    """
    if config is None and os.environ.get(CONFIG):
        config = Path(os.environ[CONFIG])
    in_file = {} if config is None else _read(config)
    in_environment = {name.lower().removeprefix(PREFIX.lower()) for name in _variables() if os.environ[name]}
    chosen = {name: value for name, value in in_file.items() if name not in in_environment}
    chosen |= {name: value for name, value in flags.items() if value is not None}
    try:
        return Settings(**chosen)
    except ValidationError as error:
        raise InvalidOptionError(describe_fault(error, flags)) from error


def unknown_variables() -> list[str]:
    """Return a warning for each variable RATIONALE_… that is no setting: probably misspelt."""
    names = [*OTHER_VARIABLES, *(PREFIX + name.upper() for name in Settings.model_fields)]
    return [
        f"{name} is not a setting{near(name.upper(), names)}; see docs/settings.md"
        for name in _variables()
        if name.upper() not in names
    ]


def _variables() -> list[str]:
    return [name for name in os.environ if name.upper().startswith(PREFIX)]


def _read(config: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(config.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidOptionError(f"cannot read the settings file {config}: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise InvalidOptionError(f"{config}: not valid TOML: {error}") from error
    for name in values:
        if name not in Settings.model_fields:
            raise InvalidOptionError(
                f"{config}: {name} is not a setting{near(name, Settings.model_fields)}; see docs/settings.md"
            )
    return values


def describe_fault(error: ValidationError, flags: Mapping[str, Any]) -> str:
    first = error.errors(include_input=False)[0]
    fault = first["msg"].removeprefix("Value error, ")
    if not first["loc"]:  # a fault of several settings together
        return f"settings: {fault}"
    name = str(first["loc"][0])
    flag, value = name.removesuffix("_s").replace("_", "-"), flags.get(name)
    option = "" if value is None or repr(value) in fault else f" (--{flag} {value})"
    return f"setting {name} ({PREFIX}{name.upper()}): {fault}{option}"
