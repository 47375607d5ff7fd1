"""Rank 1 has fewer batches than the others, and the loop is wrapped in join."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.utils.data import Sampler

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

UNEVEN_SHARDS = Drill(
    slug="uneven-shards",
    code="DD305",
    summary="rank 1's share is smaller",
    expect="DD305: rank 1 gets fewer batches in one epoch",
    plant="distdoctor_drills.data.uneven_shards:plant",
    ranks=(1,),
    strategies=("ddp", "amp"),
    arguments={"epochs": 1},
)


def plant(training: Training) -> None:
    """Cut rank 1's share to two thirds; DistributedDataParallel's join lets the others go on alone."""
    usual = training.make_sampler
    joined: list[Any] = []

    def make_sampler(dataset: Any, *, shuffle: bool) -> Sampler[int] | None:
        sampler = usual(dataset, shuffle=shuffle)
        if sampler is None or not shuffle or training.rank != 1:
            return sampler
        indices = list(sampler)
        return indices[: len(indices) * 2 // 3]  # type: ignore[return-value]

    def begin(training: Training) -> None:
        joined.append(training.arrangement.model.join())  # type: ignore[operator]
        joined[-1].__enter__()

    def end(training: Training) -> None:
        if joined:
            joined.pop().__exit__(None, None, None)

    def reduce_metrics(totals: Tensor) -> Tensor:
        return totals  # the ranks make different numbers of steps: a sum over all of them would hang

    training.replace("make_sampler", make_sampler)
    training.replace("reduce_metrics", reduce_metrics)
    training.on("epoch_start", begin)
    training.on("evaluation_start", end)
    training.on("epoch_end", end)
