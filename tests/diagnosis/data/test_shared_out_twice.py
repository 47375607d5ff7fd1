"""Data of which each rank has taken its own part, and of which a sampler deals out shares once more."""

from __future__ import annotations

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import LIKELY, Finding
from distdoctor.recording.trace.layout import PassFlag
from distdoctor.testing.samples import SHARDED, sampled_job

CHECKS = PLUGINS.checks
OWN = {0: "aaaaaaaaaaaaaaaa", 1: "bbbbbbbbbbbbbbbb"}
SUBSET = SHARDED | PassFlag.TRANSLATED


def told(outer: object, length: int, num_replicas: int = 2) -> list[Finding]:
    job = sampled_job(ranks=2, length=200)
    for epoch in range(2):
        # rank 0 has the even samples, rank 1 the odd ones; the sampler takes every second one of these
        orders = {rank: list(range(rank, 200, 2 * num_replicas)) for rank in range(2)}
        rank = {0: 0, 1: 1} if num_replicas > 1 else -1
        job.train(
            epoch=epoch, orders=orders, outer=outer, dataset_length=length, flags=SUBSET,
            num_replicas=num_replicas, sampler_rank=rank, epoch_told=epoch, set_epoch_calls=epoch + 1,
        )  # fmt: skip
    return [one for one in examine(job.recording(), CHECKS.values()).findings if one.code == "DD311"]


def test_parts_of_their_own_that_a_sampler_shares_out_once_more_are_told() -> None:
    (finding,) = told(OWN, 100)

    assert finding.confidence is LIKELY
    assert "about 100 of 200 samples" in finding.title


@pytest.mark.parametrize(
    ("outer", "num_replicas"),
    [
        pytest.param("aaaaaaaaaaaaaaaa", 2, id="one Subset for all"),
        pytest.param(OWN, 1, id="no sampler that shares out"),
    ],
)
def test_data_that_are_shared_out_once_are_left_alone(outer: object, num_replicas: int) -> None:
    assert not told(outer, 100, num_replicas)


DEALT = "rows = load()[rank::world_size]\ndata = Digits(rows)\n"


@pytest.mark.parametrize(
    ("source", "digest", "codes"),
    [
        (DEALT, OWN, ["DD311"]),
        ("data = Digits(load())\n", OWN, []),  # an object may hold its rank's number
        (DEALT, "aaaaaaaaaaaaaaaa", []),
    ],
    ids=["dealt out", "whole", "the same data"],
)
def test_a_share_that_the_source_shows_is_told_where_the_data_differ(
    source: str, digest: object, codes: list[str]
) -> None:
    job = sampled_job(ranks=2, length=100)
    for epoch in range(2):
        job.train(epoch=epoch, digest=digest, epoch_told=epoch, set_epoch_calls=epoch + 1)
    findings = examine(job.recording(sources={"/job/train.py": source}), CHECKS.values()).findings

    assert [one.code for one in findings if one.code in ("DD311", "DD313")] == codes


def test_data_of_another_length_on_each_rank_are_told() -> None:
    job = sampled_job(ranks=2, length=100)
    for epoch in range(2):
        lengths = {0: 100, 1: 92}
        orders = {rank: list(range(rank, length, 2)) for rank, length in lengths.items()}
        job.train(
            epoch=epoch, orders=orders, dataset_length=lengths, digest=OWN, epoch_told=epoch, set_epoch_calls=epoch + 1
        )
    (finding,) = [one for one in examine(job.recording(), CHECKS.values()).findings if one.code == "DD313"]

    assert finding.confidence is LIKELY
    assert "(100 on rank 0, 92 on rank 1)" in finding.title


SAMPLERS = """class Strided(Sampler):
    def __iter__(self):
        return iter(order[self.rank::self.world_size])


class ShardedBatches(BatchSampler):
    def __iter__(self):
        for number, batch in enumerate(self.batches):
            if {takes}:
                yield batch
"""


@pytest.mark.parametrize(
    ("takes", "drawn", "codes"),
    [
        ("number % self.world_size == self.rank", 4, ["DD311"]),
        ("number % self.every == 0", 4, []),  # half of the batches, whoever reads them
        ("number % self.world_size == self.rank", 2, []),  # another class may read them all again
    ],
)
def test_a_sampler_around_one_that_deals_out_already_is_told(takes: str, drawn: int, codes: list[str]) -> None:
    job = sampled_job(ranks=2, length=200)
    for epoch in range(2):
        orders = {rank: list(range(rank, 200, drawn)) for rank in range(2)}
        job.train(
            epoch=epoch, orders=orders, sampler="ShardedBatches>BatchSampler>Strided",
            num_replicas=0, sampler_rank=-1,
        )  # fmt: skip
    findings = examine(job.recording(sources={"/job/train.py": SAMPLERS.format(takes=takes)}), CHECKS.values()).findings

    found = [one for one in findings if one.code == "DD311"]
    assert [one.code for one in found] == codes
    assert [one.place.line for one in found] == [9] * len(found)  # the outer one


def test_a_share_by_host_inside_one_by_the_ranks_of_a_host_is_one_share() -> None:
    job = sampled_job(ranks=4, length=200)
    for epoch in range(2):
        job.train(
            epoch=epoch, orders={rank: list(range(rank, 200, 4)) for rank in range(4)},
            sampler="ShardedBatches>DistributedSampler", num_replicas=2, sampler_rank={0: 0, 1: 0, 2: 1, 3: 1},
            epoch_told=epoch, set_epoch_calls=epoch + 1,
        )  # fmt: skip
    text = SAMPLERS.format(takes="number % self.world_size == self.rank")
    findings = examine(job.recording(sources={"/job/train.py": text}), CHECKS.values()).findings

    assert [one.code for one in findings if one.code == "DD311"] == []
