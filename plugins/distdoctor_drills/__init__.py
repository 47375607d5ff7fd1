"""One planted illness per file, named after it. The package offers what its modules hold, so that nothing is listed twice."""

from __future__ import annotations

from collections.abc import Iterable

from distdoctor.hooks import found_in
from distdoctor.offers import Drill


def distdoctor_drills() -> Iterable[Drill]:
    return found_in(__name__, Drill)
