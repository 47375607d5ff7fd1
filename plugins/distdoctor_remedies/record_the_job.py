"""Start the job under distdoctor, so that every call is on record."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

RECORD_THE_JOB = Remedy(
    slug="record-the-job",
    what="Start the job under distdoctor, so that every call is on record.",
    how="distdoctor run --nproc 2 train.py",
    effect="the next hang is explained call by call: which rank skipped what, in which line",
    safety="changes no result",
    source="distdoctor run --help",
)
