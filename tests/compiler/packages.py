"""Packages as pip installs them, in a folder on sys.path: `importlib.metadata` finds them there."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from rationale import extensions
from rationale.methods.propagation.lrp.rules import RULES

ABSOLUTE = '''
from dataclasses import dataclass
from typing import ClassVar

from rationale import STABILISER, Group, RelevanceRule, Term


def absolute(op, v):
    return op.Abs(v)


@dataclass(frozen=True)
class Absolute(RelevanceRule):
    """|W|·|x| + |b|."""

    epsilon: float = STABILISER
    name: ClassVar[str] = "absolute"

    def groups(self):
        return (Group((Term(absolute, absolute, absolute),)),)
'''


class Packages:
    """A folder of installed packages, first on sys.path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def install(
        self,
        name: str,
        code: str,
        points: Mapping[str, str],
        *,
        version: str = "1.2",
        group: str = extensions.LRP_RULES,
    ) -> None:
        """A module of that name (with _ for -), and its metadata with entry points by name."""
        module = name.replace("-", "_")
        (self.folder / f"{module}.py").write_text(code, "utf-8")
        sys.modules.pop(module, None)
        info = self.folder / f"{module}-{version}.dist-info"
        for old in self.folder.glob(f"{module}-*.dist-info"):
            old.rename(self.folder / f"{old.name}.old")
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        lines = "".join(f"{key} = {value}\n" for key, value in points.items())
        (info / "entry_points.txt").write_text(f"[{group}]\n{lines}")

    def install_absolute(self, version: str = "1.2") -> None:
        self.install("example-rules", ABSOLUTE, {"absolute": "example_rules:Absolute"}, version=version)


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Packages]:
    """What they declare, and what was imported of them, is forgotten afterwards."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    rules, modules = dict(RULES), set(sys.modules)
    extensions.packages.cache_clear()
    yield Packages(folder)
    RULES.clear()
    RULES.update(rules)
    extensions.packages.cache_clear()
    for name in set(sys.modules) - modules:
        if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]
