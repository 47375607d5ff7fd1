"""A stranger's plugin: one strategy, one check, one remedy and one report, offered as its modules hold them.

The ranks that train by `toylab.patient` import this file too, so it imports nothing before it is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distdoctor.plugin_api import Check, Diagnosis, Remedy, Strategy


def distdoctor_checks() -> Iterable[Check]:
    from distdoctor.plugin_api import Check, found_in

    return found_in(__name__, Check)


def distdoctor_remedies() -> Iterable[Remedy]:
    from distdoctor.plugin_api import Remedy, found_in

    return found_in(__name__, Remedy)


def distdoctor_strategies() -> Iterable[Strategy]:
    from distdoctor.plugin_api import Strategy, found_in

    return found_in(__name__, Strategy)


def distdoctor_reports() -> dict[str, Callable[[Diagnosis], str]]:
    return {"haiku": lambda diagnosis: f"{len(diagnosis.findings)} findings\n"}
