"""The rules, in folders by family: importing this package imports them all, and so fills the table.

Those of installed packages come last, so that they may replace others.
"""

from importlib import import_module
from pkgutil import walk_packages

from rationale.rules.rule import import_packages

for _module in walk_packages(__path__, f"{__name__}."):
    import_module(_module.name)
import_packages()
