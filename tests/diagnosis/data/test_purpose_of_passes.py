"""What a loader is read for, where steps are made while it is being read."""

from __future__ import annotations

import pytest

from distdoctor.diagnosis.data.samples import SampleOrders
from distdoctor.recording.trace.layout import PassFlag
from distdoctor.testing.samples import sampled_job


@pytest.mark.parametrize("trains_beside", [False, True])
def test_a_loader_that_is_read_on_through_evaluations_is_none_that_trains(trains_beside: bool) -> None:
    """A loader that was begun without gradients may be a prefetcher's; not where another one was begun with them."""
    job = sampled_job(ranks=2, length=64)
    if trains_beside:
        job.train()
    job.evaluate(flags=PassFlag.STEPPED | PassFlag.DISTRIBUTED_SAMPLER)
    read_on = SampleOrders.of(job.recording()).by_rank[0][-1]

    assert (read_on.trains, read_on.evaluates) == (not trains_beside, trains_beside)
