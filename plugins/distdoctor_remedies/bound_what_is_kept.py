"""Give what is kept a bound."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

BOUND_WHAT_IS_KEPT = Remedy(
    slug="bound-what-is-kept",
    what="Give the container a bound, or write out and forget what it holds once per epoch.",
    how="""from collections import deque
recent = deque(maxlen=1000)
cache.clear()                    # at the end of an epoch""",
    effect="Memory stays at the bound.",
    safety="what is forgotten has to be computed or read again",
    source="collections.deque, functools.lru_cache(maxsize=...)",
)
