"""An IterableDataset that is sharded by rank, but not by worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distdoctor.offers import Drill
from distdoctor_drills.data.unsharded_iterable import read_as_stream

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

DUPLICATED_BY_WORKERS = Drill(
    slug="duplicated-by-workers",
    code="DD307",
    summary="every DataLoader worker reads the whole stream of its rank",
    expect="DD307: every worker yields each batch once",
    plant="distdoctor_drills.data.duplicated_by_workers:plant",
    strategies=("ddp", "amp"),
    arguments={"epochs": 1, "steps": 16},
)


def plant(training: Training) -> None:
    """Read the training set as a stream that is divided among the ranks, and not among their workers."""
    read_as_stream(training, divided=True, workers=2)
