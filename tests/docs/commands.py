"""Whether the commands of a page exist, with their flags: looked up, not run."""

import functools
import importlib.util
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from typer.main import get_command

from rationale_service.cli.main import app
from rationale_service.configuration import OTHER_VARIABLES
from rationale_service.settings import PREFIX, Settings
from tests.docs.pages import ROOT

_ASSIGNMENT = re.compile(r"\w+=.*", re.DOTALL)
_OPERATOR = re.compile(r"[();<>|&]+")
_FLAG = re.compile(r"--[a-z][a-z0-9-]*")
_SETTING = re.compile(rf"{PREFIX}[A-Z][A-Z_]*[A-Z]")
_WRITTEN = {"receipt/check.py"}  # by a command before it
_EXTRAS = re.compile(r"\.\[([\w,]+)\]")
_NO_VALUE = "requires an argument"
_MORE_SETTINGS = {*OTHER_VARIABLES, "RATIONALE_TEST_DATA"}
# Flags of programs that are not ours, as far as pages name them.
OF_OTHERS = {"--trace-config": "tritonserver", "--csv": "locust", "--processes": "locust"}

Words = Sequence[str]


def commands(script: str) -> Iterator[list[str]]:
    """The words of each command of a shell script. Comments are left out."""
    text = ""
    for line in script.splitlines():
        text = f"{text}{line}\n"
        if line.endswith("\\"):
            text = text.removesuffix("\\\n")
            continue
        try:
            lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
            lexer.whitespace_split = True
            words = list(lexer)
        except ValueError:  # a quotation that goes on
            continue
        text = ""
        yield from _separate(words)
    if text.strip():
        raise ValueError(f"a quotation without an end: {text[:80]}")


def _separate(words: Words) -> Iterator[list[str]]:
    command: list[str] = []
    for word in (*words, ";"):
        if not _OPERATOR.fullmatch(word):
            command.append(word)
        elif command:
            yield _named(command)
            command = []


def _named(words: list[str]) -> list[str]:
    """Without the variables that stand before a command."""
    while len(words) > 1 and _ASSIGNMENT.fullmatch(words[0]):
        words = words[1:]
    return words


def faults(words: Words) -> list[str]:
    """What a command names that does not exist; of programs that are not ours nothing is known."""
    check = _CHECKS.get(words[0])
    return [] if check is None else check(words[1:])


def faults_in_prose(words: Words) -> list[str]:
    """The same; a flag at the end may stand without its value."""
    return [fault for fault in faults(words) if not fault.endswith(f"{_NO_VALUE}.")]


def is_ours(words: Words) -> bool:
    return bool(words) and words[0] in _CHECKS


def unknown_flag(flag: str) -> bool:
    """Whether no command and no script here has it."""
    return flag not in _known_flags()


def unknown_settings(text: str) -> set[str]:
    own = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields}
    compose = set(_SETTING.findall((ROOT / "docker-compose.yml").read_text()))
    return set(_SETTING.findall(text)) - own - compose - _MORE_SETTINGS


def _of_rationale(words: Words) -> list[str]:
    command: Any = get_command(app)
    name, rest = "rationale", list(words)
    while hasattr(command, "commands"):
        if not rest or rest[0] == "--help":
            return []
        name = f"{name} {rest[0]}"
        if rest[0] not in command.commands:
            return [f"there is no command `{name}`"]
        command = command.commands[rest.pop(0)]
    try:
        command.make_parser(command.context_class(command, info_name=name)).parse_args(rest)
    except Exception as error:  # typer has its own, and no public name for them
        return [f"`{name}`: {error}"]
    return []


def _of_python(words: Words) -> list[str]:
    if "-c" in words:
        return []
    if words[:1] == ["-m"]:
        return _of_module(words[1], words[2:])
    script = next((word for word in words if word.endswith(".py")), None)
    if script is None or script in _WRITTEN:
        return []
    if not (ROOT / script).is_file():
        return [f"there is no {script}"]
    return _flags_of((ROOT / script).read_text(), script, words)


def _of_module(name: str, words: Words) -> list[str]:
    try:
        found = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        found = None
    if found is None or found.origin is None:
        return [f"there is no module {name}"]
    if name.partition(".")[0] not in ("rationale", "rationale_service", "loadtests", "benchmarks", "tests"):
        return []
    origin = Path(found.origin)
    files = origin.parent.glob("*.py") if origin.name == "__init__.py" else [origin]
    return _flags_of("".join(file.read_text() for file in files), name, words)


def _flags_of(source: str, name: str, words: Words) -> list[str]:
    flags = [found[0] for word in words if (found := _FLAG.match(word))]
    return [f"{name} has no {flag}" for flag in flags if f'"{flag}"' not in source]


def _of_make(words: Words) -> list[str]:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE))
    variables = set(re.findall(r"^([A-Z]+) \?=", makefile, re.MULTILINE))
    faults = []
    for word in words:
        name, is_variable, _ = word.partition("=")
        if name not in (variables if is_variable else targets):
            faults.append(f"make has no {name}")
    return faults


def _of_pip(words: Words) -> list[str]:
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = [name for word in words for found in _EXTRAS.findall(word) for name in found.split(",")]
    return [f"there is no extra {name}" for name in named if name not in known]


def _of_pytest(words: Words) -> list[str]:
    return [f"there is no {word}" for word in words if "/" in word and not (ROOT / word).exists()]


_CHECKS: dict[str, Callable[[Words], list[str]]] = {
    "rationale": _of_rationale,
    "python": _of_python,
    "python3": _of_python,
    "make": _of_make,
    "pip": _of_pip,
    "pytest": _of_pytest,
}


@functools.cache
def _known_flags() -> set[str]:
    files = [ROOT / "Makefile", ROOT / "Dockerfile", *ROOT.glob("docker-compose*.yml")]
    for folder in "compiler service loadtests benchmarks scripts tests/conformance tests/peers".split():
        files += (ROOT / folder).rglob("*.py")
    found = {flag for file in files for flag in _FLAG.findall(file.read_text())}
    return found | set(_options(get_command(app))) | OF_OTHERS.keys()


def _options(command: Any) -> Iterator[str]:
    for each in getattr(command, "commands", {}).values():
        yield from _options(each)
    for parameter in command.params:
        yield from (*parameter.opts, *parameter.secondary_opts)
