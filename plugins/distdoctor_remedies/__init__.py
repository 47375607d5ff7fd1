"""One table of prescriptions per family. The package offers what its modules hold, so that nothing is listed twice."""

from __future__ import annotations

from collections.abc import Iterable

from distdoctor.diagnosis.remedy import Remedy
from distdoctor.hooks import found_in


def distdoctor_remedies() -> Iterable[Remedy]:
    return found_in(__name__, Remedy)
