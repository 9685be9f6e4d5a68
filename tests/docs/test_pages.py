"""Every block of every page: run as it is typed, checked, or not run for a reason that is written down."""

import configparser
import json
import re
import tomllib
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from benchmarks.networks import import_torchvision
from rationale.extensions import GROUPS
from rationale_service.configuration import load_settings
from rationale_service.security.keys import read_keyring
from tests.docs.commands import commands, faults, faults_in_prose, is_ours, unknown_flag, unknown_settings
from tests.docs.pages import PAGES, ROOT, Block, Page, read
from tests.docs.scratch import Scratch, scratch
from tests.needs import need

# Commands that no test runs. A block that holds one is not run, and its commands are looked up.
NOT_RUN = {
    "make": "makes environments of its own, and runs all tests",
    "docker": "needs a Docker engine",
    "rationale triton": "needs a Docker engine",
    "python -m benchmarks": "takes minutes to hours",
    "python -m loadtests": "takes minutes to hours",
    "locust": "puts load on a gateway until it is stopped",
}
# Commands that need more than Python packages: a page with one is left out without it (tests.needs).
NEEDED = {"curl": "curl", "openssl": "OpenSSL", "rationale export": "npm"}
SHELL, PYTHON = "sh", "python"
PICTURES = ROOT / "docs/pictures"  # python -m tests.docs.pictures makes those in the folders of pages
PICTURE = re.compile(r"\]\(\.\./pictures/(\w+)/(\S+\.svg)\)")
# What newcomers read first. Other pages start processes by the dozen: `make test-full` runs them.
IN_EVERY_RUN = ("README.md", "CONTRIBUTING.md")


def why_not_run(block: Block) -> str | None:
    if block.language not in (SHELL, PYTHON):
        return "not to be run"
    return next(_told_of(block, NOT_RUN), block.notes.get("not run"))


def _told_of(block: Block, told: Mapping[str, str]) -> Iterator[str]:
    """Yield what `told` says of the block's commands, by how they begin."""
    if block.language == SHELL:
        for words in commands(block.text):
            for start, text in told.items():
                if f"{' '.join(words)} ".startswith((f"{start} ", f"{start}.")):
                    yield text


def run_page(page: Page, folder: Path, patch: pytest.MonkeyPatch, *, slow: bool) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    blocks = [b for b in page.blocks if why_not_run(b) is None and (slow or "slow" not in b.notes)]
    for name in {name for block in blocks for name in _told_of(block, NEEDED)}:
        need(name)
    if any("from zennit" in block.text for block in blocks):
        import_torchvision()  # first, because zennit imports it
    with scratch(folder) as here:
        patch.chdir(here.folder)
        with warnings.catch_warnings():
            for block in blocks:
                for module in block.notes.get("warnings of", "").replace(",", " ").split():
                    warnings.filterwarnings("ignore", module=rf"{module}\b")
                _run(block, here, names)
        demand_pictures(page, here.folder)


def pictures_of(page: Page) -> list[str]:
    """Return the names of the pictures that a page makes: those in the folder that is called as its own."""
    return [name for folder, name in PICTURE.findall(page.text) if folder == page.path.parent.name]


def demand_pictures(page: Page, made: Path) -> None:
    """Hold the pictures of a page to those that its blocks made: they name the same things."""
    for name in pictures_of(page):
        shown, drawn = (words_of(folder / name) for folder in (PICTURES / page.path.parent.name, made))
        assert shown == drawn, f"{page.path}: {name} is old: python -m tests.docs.pictures"


def words_of(picture: Path) -> set[str]:
    """Return the words of a drawing: numbers differ a little from one machine to another."""
    texts = re.findall(r"<text[^>]*>([^<]*)", picture.read_text(encoding="utf-8"))
    return {word for text in texts for word in re.findall(r"[A-Za-z_]{2,}", text)}


def _run(block: Block, here: Scratch, names: dict[str, Any]) -> None:
    try:
        here.run(block.notes.get("first", ""))
        if block.language == SHELL:
            here.run(block.text)
        elif "alone" in block.notes:  # in a process of its own
            here.run(f"python - <<'END'\n{block.text}\nEND")
        else:
            exec(compile("\n" * block.line + block.text, str(block.page), "exec"), names)  # noqa: S102
    except Exception as error:
        raise AssertionError(f"{block}: {block.text}\n{error}") from error


def _pages(slow: bool) -> list[Any]:
    """Those with something to run."""
    runs = {path: [block for block in read(path).blocks if why_not_run(block) is None] for path in PAGES}
    found = [path for path, blocks in runs.items() if any(("slow" in each.notes) is slow for each in blocks)]
    return [
        pytest.param(path, id=str(path), marks=() if slow or str(path) in IN_EVERY_RUN else pytest.mark.full)
        for path in found
    ]


@pytest.mark.parametrize("path", _pages(slow=False))
def test_blocks_run_as_they_are_typed(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_page(read(path), tmp_path, monkeypatch, slow=False)


@pytest.mark.slow
@pytest.mark.parametrize("path", _pages(slow=True))
def test_slow_blocks_run_too(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_page(read(path), tmp_path, monkeypatch, slow=True)


# --- what is not run --------------------------------------------------------------------------------------


def check_sh(block: Block) -> None:
    wrong = [fault for words in commands(block.text) for fault in faults(words)]
    assert wrong == [], str(block)


def check_python(block: Block) -> None:
    compile(block.text, str(block), "exec")


def check_text(block: Block) -> None:
    """Output, not commands: those would not be looked at."""
    ours = [line for line in block.text.splitlines() if is_ours(line.split())]
    assert ours == [], f"{block}: commands belong in a block of `sh`"


def check_toml(block: Block, tmp_path: Path) -> None:
    """Keys or settings, which the gateway reads, or a package's entry points."""
    file = tmp_path / "block.toml"
    file.write_text(block.text)
    found = tomllib.loads(block.text)
    if "project" in found:
        assert found["project"]["entry-points"].keys() <= set(GROUPS), block
    elif "keys" in found:
        assert read_keyring(file, None, admin_is_local=True).keys
    else:
        load_settings({}, file)


def check_yaml(block: Block) -> None:
    found = YAML(typ="safe").load(block.text)
    assert faults(["rationale", *map(str, found.get("args", []))]) == [], block


def check_ini(block: Block) -> None:
    units = configparser.ConfigParser(strict=False, interpolation=None)
    units.optionxform = str  # type: ignore[assignment]
    units.read_string(block.text)
    for words in commands(units.get("Service", "ExecStart")):
        assert faults([Path(words[0]).name, *words[1:]]) == [], str(block)


CHECKS: dict[str, Callable[..., None]] = {
    SHELL: check_sh,
    PYTHON: check_python,
    "text": check_text,
    "toml": check_toml,
    "yaml": check_yaml,
    "ini": check_ini,
    "json": lambda block: json.loads(block.text),
}


@pytest.mark.parametrize("path", PAGES, ids=str)
def test_blocks_are_what_they_say(path: Path, tmp_path: Path) -> None:
    for block in read(path).blocks:
        if not block.language:
            check_text(block)
            continue
        assert block.language in CHECKS, f"{block}: name its language, one of {', '.join(CHECKS)}"
        more = (tmp_path,) if block.language == "toml" else ()
        CHECKS[block.language](block, *more)


@pytest.mark.parametrize("path", PAGES, ids=str)
def test_what_the_prose_names_exists(path: Path) -> None:
    wrong = []
    for line, span in read(path).spans:
        flag = re.match(r"--[a-z][a-z0-9-]*", span)
        if flag and unknown_flag(flag[0]):
            wrong.append(f"{path}:{line}: nothing has {flag[0]}")
        try:
            found = list(commands(span))
        except ValueError:  # no shell
            continue
        wrong += [f"{path}:{line}: {fault}" for words in found for fault in faults_in_prose(words)]
    assert wrong == []


@pytest.mark.parametrize("path", PAGES, ids=str)
def test_settings_that_are_named_exist(path: Path) -> None:
    assert unknown_settings(read(path).text) == set()
