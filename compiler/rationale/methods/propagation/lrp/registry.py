"""LRP rules by name: built-in rules, those that this process declared, and those of installed packages.

The class of a package is imported only when a request names it.
"""

from collections.abc import Iterable
from dataclasses import fields

from rationale.errors import ExtensionError, InvalidOptionError
from rationale.extensions import LRP_RULES, InstalledExtension, extensions_of
from rationale.methods.propagation.lrp.rules import NAME, RULES, Group, RelevanceRule, is_built_in
from rationale.schema.manifest import Extension


def find_rule_class(name: str) -> type[RelevanceRule]:
    """Return the class of that name; a package's class has precedence over a script's.

    Raises:
        InvalidOptionError: if there is no such name; the message lists all names.
        ExtensionError: if a package's class is no rule, has the name of another, or fails to import.
    """
    extensions = extensions_of(LRP_RULES)
    matches = [extension for extension in extensions if extension.point.name == name]
    declared = RULES.get(name)
    if not matches:
        if declared is None:
            names = dict.fromkeys([*RULES, *(extension.point.name for extension in extensions)])
            raise InvalidOptionError(f"rule {name!r} is not known; there are {', '.join(names)}.")
        return declared
    if declared is not None and is_built_in(declared):
        raise ExtensionError(f"{matches[0]}: one of Rationale's own rules has that name. Choose another.")
    if len(matches) > 1:
        raise ExtensionError(
            f"{matches[0]}, and {matches[1]}: both rules have the same name. Uninstall one of the two."
        )
    return _load(matches[0])


def _load(extension: InstalledExtension) -> type[RelevanceRule]:
    cls = extension.load()
    if not isinstance(cls, type) or not issubclass(cls, RelevanceRule):
        raise ExtensionError(f"{extension}: {cls!r} is not a class derived from rationale.RelevanceRule.")
    fault = _fault(cls, extension.point.name)
    if fault is not None:
        raise ExtensionError(f"{extension}: class {cls.__qualname__} {fault}.")
    return cls


def _fault(cls: type[RelevanceRule], name: str) -> str | None:
    """Return the change that the class's author must make, or None."""
    if "__dataclass_fields__" not in vars(cls):
        return "is not a dataclass: decorate it with @dataclass(frozen=True)"
    if getattr(cls, "name", None) != name or any(f.name == "name" for f in fields(cls)):
        return f'needs a name: write name: ClassVar[str] = "{name}" in it'
    if not NAME.fullmatch(name):
        return "has a name that no command line can write: take letters, digits, - and _"
    if not is_built_in(cls) and cls.groups is RelevanceRule.groups:
        return "replaces none of x, W and b: define `groups`"
    return None


def check_rule(rule: object) -> None:
    """Raise InvalidOptionError if an object cannot be used as a rule."""
    if not isinstance(rule, RelevanceRule):
        raise InvalidOptionError(f"{rule!r} is not a rule: give one such as Epsilon(1e-6).")
    cls = type(rule)
    if is_built_in(cls):
        return
    fault = _fault(cls, getattr(cls, "name", cls.__name__.lower()))
    if fault is not None:
        raise InvalidOptionError(f"rule {cls.__qualname__} {fault}.")
    groups = rule.groups()
    if not isinstance(groups, tuple) or not groups or not all(isinstance(g, Group) for g in groups):
        raise InvalidOptionError(f"rule {rule}: its `groups` must give a tuple of Group, not {groups!r}.")


def origins(rules: Iterable[RelevanceRule]) -> tuple[Extension, ...]:
    """Return the origins of the rules that are not built in, each class once."""
    classes = dict.fromkeys(type(rule) for rule in rules if not is_built_in(type(rule)))
    return tuple(_origin(cls) for cls in classes)


def _origin(cls: type[RelevanceRule]) -> Extension:
    for extension in extensions_of(LRP_RULES):
        if extension.point.name == cls.name and extension.load() is cls:
            return extension.recorded
    value = f"{cls.__module__}:{cls.__qualname__}"
    return Extension(group=LRP_RULES, name=cls.name, value=value, package=None, version=None)
