"""The rules, in folders by family: importing this package imports them all, and so fills the table."""

from importlib import import_module
from pkgutil import walk_packages

for _module in walk_packages(__path__, f"{__name__}."):
    import_module(_module.name)
