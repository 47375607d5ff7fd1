"""Let the stopped process go on."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

CONTINUE_THE_PROCESS = Remedy(
    slug="continue-the-process",
    what="Let the stopped process go on.",
    how="kill -CONT PID",
    effect="the rank goes on where it was, and the others with it",
    safety="changes no result",
    source="https://man7.org/linux/man-pages/man7/signal.7.html",
)
