"""One rank has fewer batches than the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

UNEVEN_INPUTS = Drill(
    slug="uneven-inputs",
    code="DD111",
    summary="rank 1's loader ends after ten batches",
    expect="DD111: the batches per rank, and the loader's line",
    plant="distdoctor_drills.hang.uneven_inputs:plant",
    ranks=(1,),
    strategies=("ddp", "amp", "fsdp", "hybrid", "tensor", "pipeline"),
)


def plant(training: Training) -> None:
    """Rank 1's share of the data is smaller, and nobody looks after that."""
    usual = training.make_loader

    def make_loader(dataset: Any, sampler: Any, *, drop_last: bool, skip: int = 0) -> Any:
        if training.rank == 1 and drop_last:
            sampler = list(sampler)[: 10 * training.request.batch_size // training.arrangement.data_ranks]
        return usual(dataset, sampler, drop_last=drop_last, skip=skip)

    training.replace("make_loader", make_loader)
