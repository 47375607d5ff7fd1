"""Start every rank, and let nothing stand between its start and init_process_group."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

START_EVERY_RANK = Remedy(
    slug="start-every-rank",
    what="Start every rank, and let nothing stand between its start and init_process_group.",
    how="torchrun --nnodes 2 --node-rank 1 ... on the second node",
    effect="the rendezvous completes when the last rank arrives",
    safety="changes no result",
    source="https://docs.pytorch.org/docs/stable/elastic/run.html",
)
