"""A stranger's plugin: one strategy, one check, one remedy and one report, offered as its modules hold them."""

from collections.abc import Callable, Iterable

from distdoctor.diagnosis.check import Check
from distdoctor.diagnosis.diagnosis import Diagnosis
from distdoctor.diagnosis.remedy import Remedy
from distdoctor.hooks import found_in, offers
from distdoctor.offers import Strategy


@offers
def distdoctor_checks() -> Iterable[Check]:
    return found_in(__name__, Check)


@offers
def distdoctor_remedies() -> Iterable[Remedy]:
    return found_in(__name__, Remedy)


@offers
def distdoctor_strategies() -> Iterable[Strategy]:
    return found_in(__name__, Strategy)


@offers
def distdoctor_reports() -> dict[str, Callable[[Diagnosis], str]]:
    return {"haiku": lambda diagnosis: f"{len(diagnosis.findings)} findings\n"}
