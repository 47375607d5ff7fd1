"""One illness per file, named after the illness, in the folder of its family. The package offers what its modules hold."""

from __future__ import annotations

from collections.abc import Iterable

from distdoctor.diagnosis.check import Check
from distdoctor.hooks import found_in


def distdoctor_checks() -> Iterable[Check]:
    return found_in(__name__, Check)
