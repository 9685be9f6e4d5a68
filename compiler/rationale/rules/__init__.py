"""The table of rules, in folders by family; importing this package imports all rules and fills the table.

The rules of installed packages come last, so that they can replace others.
"""

from importlib import import_module
from pkgutil import walk_packages

from rationale.rules.rule import import_packages

for _module in walk_packages(__path__, f"{__name__}."):
    import_module(_module.name)
import_packages()
