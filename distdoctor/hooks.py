"""The hooks that a plugin may implement; pluggy calls them all, ours and strangers' alike.

A plugin is a module or package named by an entry point in the group `distdoctor`:

    [project.entry-points.distdoctor]
    mylab = "mylab_distdoctor"

and implements any of the functions below: a function of the same name is the plugin's answer. Each returns what it offers and
does nothing else: no torch import at load time of the package that offers checks or remedies, no output, no environment.

Hooks are known by their names (see `distdoctor.plugins.Manager`), so that a plugin needs no marker: a rank imports a strategy's
package, and a rank gets the standard library and torch, not pluggy.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

from distdoctor.offers import DataSource, Drill, Model, Strategy

if TYPE_CHECKING:
    from distdoctor.diagnosis.check import Check
    from distdoctor.diagnosis.diagnosis import Diagnosis
    from distdoctor.diagnosis.remedy import Remedy

PROJECT = "distdoctor"
PREFIX = "distdoctor_"
"""What every hook's name begins with."""

Offer = TypeVar("Offer")


class Found(list[Offer]):
    """What a package offers, and under `troubles` which of its modules could not be imported, and why."""

    def __init__(self) -> None:
        super().__init__()
        self.troubles: list[str] = []


def found_in(package: str, kind: type[Offer]) -> Found[Offer]:
    """Every module-level value of type `kind`, alone or in a tuple, in all modules below the package, by their names.

    For a package's `__init__`, so that its files are the list: `return found_in(__name__, Check)`. A module that cannot be
    imported is left out and named in `troubles`: one broken check does not take the others along.
    """
    found: Found[Offer] = Found()
    for name in _modules_of(package):
        try:
            module = importlib.import_module(name)
        except Exception as error:
            found.troubles.append(f"{name.removeprefix(package + '.')} left out: {type(error).__name__}: {error}")
            continue
        for value in vars(module).values():
            offered = value if isinstance(value, tuple) else (value,)
            found.extend(v for v in offered if isinstance(v, kind) and not any(v is f for f in found))
    return found


def _modules_of(package: str) -> Iterator[str]:
    home = importlib.import_module(package)
    for info in sorted(pkgutil.iter_modules(home.__path__), key=lambda info: info.name):
        name = f"{package}.{info.name}"
        if info.ispkg:
            yield from _modules_of(name)
        else:
            yield name


def distdoctor_strategies() -> Iterable[Strategy]:  # type: ignore[empty-body]
    """The ways of training that this plugin adds. A name may be offered once; two owners are both named in the error."""


def distdoctor_models() -> Iterable[Model]:  # type: ignore[empty-body]
    """The reference models that this plugin adds, for `--model NAME`."""


def distdoctor_data() -> Iterable[DataSource]:  # type: ignore[empty-body]
    """The reference data sets that this plugin adds, for `--data NAME`."""


def distdoctor_drills() -> Iterable[Drill]:  # type: ignore[empty-body]
    """The illnesses that this plugin can plant, for `--fire-drill SLUG`."""


def distdoctor_checks() -> Iterable[Check]:  # type: ignore[empty-body]
    """The checks that this plugin adds. Codes DD000-DD999 are distdoctor's own; others take a prefix of their own (`LAB001`).

    A check may be called any number of times, on any recording, in any order; it must not import torch.
    """


def distdoctor_remedies() -> Iterable[Remedy]:  # type: ignore[empty-body]
    """The prescriptions that findings may name by slug."""


def distdoctor_reports() -> dict[str, Callable[[Diagnosis], str]]:  # type: ignore[empty-body]
    """Formats for `--output-format NAME`: name -> `render(diagnosis) -> str`."""
