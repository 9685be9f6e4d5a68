"""The extensions of installed packages: their entry points in Rationale's groups.

A package declares one in its pyproject.toml:

    [project.entry-points."rationale.lrp_rules"]
    absolute = "example_rules:Absolute"
"""

from dataclasses import dataclass
from functools import cache
from importlib import metadata
from typing import Any

from rationale.errors import ExtensionError
from rationale.schema.manifest import Extension

LRP_RULES = "rationale.lrp_rules"
RULES = "rationale.rules"
GROUPS = (LRP_RULES, RULES)


@dataclass(frozen=True)
class InstalledExtension:
    """An entry point, and its record for a manifest."""

    point: metadata.EntryPoint
    recorded: Extension

    def __str__(self) -> str:
        brought = self.recorded
        return (
            f"package {brought.package} {brought.version}, entry point {brought.name} = {brought.value!r} "
            f"of {brought.group}"
        )

    def load(self) -> Any:
        """Import the entry point's object; raise ExtensionError if that fails."""
        try:
            return self.point.load()
        except (Exception, SystemExit) as error:
            raise ExtensionError(
                f"{self}: it cannot be imported ({type(error).__name__}: {error}). Repair the package, or "
                f"uninstall it: pip uninstall {self.recorded.package}"
            ) from error


def extensions_of(group: str) -> list[InstalledExtension]:
    """Return every entry point of a group, sorted by package, without importing them."""
    return sorted((_installed(point, group) for point in metadata.entry_points(group=group)), key=str)


@cache
def packages() -> dict[str, str]:
    """Return the versions of the packages with extensions, by name, as this process first found them."""
    records = [record.recorded for group in GROUPS for record in extensions_of(group)]
    return {record.package or record.value: record.version or "" for record in records}


def _installed(point: metadata.EntryPoint, group: str) -> InstalledExtension:
    package, version = (point.dist.name, point.dist.version) if point.dist else (None, None)
    return InstalledExtension(
        point,
        Extension(group=group, name=point.name, value=point.value, package=package, version=version),
    )
