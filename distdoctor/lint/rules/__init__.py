"""What lint looks for, one illness per file. The package offers what its modules hold, so that nothing is listed twice."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from distdoctor.lint.rule import Rule


@cache
def all_rules() -> tuple[Rule, ...]:
    """Every rule, in the order of the codes."""
    found = []
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        found += [value for value in vars(module).values() if isinstance(value, Rule)]
    return tuple(sorted(found, key=lambda one: one.code))
