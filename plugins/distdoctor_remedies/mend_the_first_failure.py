"""Mend what failed first; what the other ranks say afterwards is only its echo."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

REMEDY = Remedy(
    slug="mend-the-first-failure",
    what="Mend the failure of the rank that failed first; the errors of the other ranks follow from it.",
    how="",
    effect="the others stop failing with it",
    safety="changes no result",
    source="",
)
