"""Rules that installed packages bring: their modules are named under the entry point `rationale.rules`."""

from functools import cache

from compiler.extensions import RULES, Installed, installed
from compiler.manifest import Extension
from compiler.rules.rule import Rule


@cache
def rule_packages() -> tuple[Installed, ...]:
    """Return the entry points that name modules with rules, in the order of their packages."""
    return tuple(sorted(installed(RULES), key=lambda one: (one.recorded.package or "", one.point.module)))


def import_packages() -> None:
    """Import the modules, so that their rules are declared.

    Raises:
        ExtensionError: a module that cannot be imported; its package is named.
    """
    for one in rule_packages():
        one.load()


def package_of(rule: Rule) -> Extension | None:
    """Return the extension with a rule; None for Rationale's own, and for those of scripts."""
    parts = rule.forward.__module__.split(".")
    shared = {one: _shared(one.point.module.split("."), parts) for one in rule_packages()}
    nearest = max(shared, key=lambda one: shared[one], default=None)
    return nearest.recorded if nearest is not None and shared[nearest] else None


def _shared(a: list[str], b: list[str]) -> int:
    """Return how many names two modules' paths begin with in common."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
