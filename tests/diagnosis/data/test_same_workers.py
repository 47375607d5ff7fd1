"""Workers of several ranks that yield one stream are told, with the line that seeds it; ranks that read all the same are one."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from sick import PLUGINS

from distdoctor.diagnosis.data.same_workers import same_workers
from distdoctor.diagnosis.data.samples import SampleOrders
from distdoctor.diagnosis.facts.replicas import Replicas, ReplicaSet
from distdoctor.diagnosis.finding import LIKELY, Finding
from distdoctor.recording.trace.layout import PassFlag
from distdoctor.testing.samples import sampled_job

STREAM = PassFlag.ITERABLE | PassFlag.HASHED


def stream(seed: int, *, length: int = 20, of: int = 1 << 30) -> list[int]:
    """The first samples of the batches of one worker."""
    return [random.Random(f"{seed}-{number % of}").randrange(1, 1 << 32) for number in range(length)]


def handed(*workers: Sequence[int]) -> list[int]:
    """torch asks the workers in turns."""
    return [batch for turn in zip(*workers, strict=True) for batch in turn]


def told(seeds: Mapping[int, Sequence[int]], source: str = "", flags: PassFlag = STREAM, **about: int) -> list[Finding]:
    orders = {rank: handed(*(stream(seed, **about) for seed in own)) for rank, own in seeds.items()}
    job = sampled_job(ranks=len(seeds), length=-1)
    job.train(orders=orders, sampler="", workers=len(seeds[0]), flags=flags)
    return list(PLUGINS.checks["DD306"].look(job.recording(sources={"/job/train.py": source})))


def test_every_stream_that_workers_of_several_ranks_yield_is_in_the_finding() -> None:
    (finding,) = told({rank: (42 + rank, 43 + rank) for rank in range(3)})

    assert finding.title == (
        "worker 1 of rank 0 and worker 0 of rank 1 yield the same stream of Digits, and so do those of 1 more stream"
    )
    assert (finding.ranks, finding.confidence, finding.evidence["batches_compared"]) == ((0, 1, 2), LIKELY, 20)
    assert finding.prescriptions[0].slug == "shard-the-stream"


def test_one_worker_that_is_the_same_on_two_ranks_is_enough() -> None:
    (finding,) = told({0: (1, 2), 1: (1, 3)})

    assert finding.title == "worker 0 of rank 0 and worker 0 of rank 1 yield the same stream of Digits"


def test_the_seed_is_shown_where_it_is_made_of_the_numbers() -> None:
    source = """
class Digits(IterableDataset):
    def __iter__(self):
        worker = get_worker_info().id
        seed = 42 + worker + self.rank
        yield from random.Random(seed).sample(self.data, 9)
"""
    (finding,) = told({0: (42, 43), 1: (43, 44)}, source)

    assert (finding.place.line, finding.places[0].role) == (5, "the stream is seeded with `42 + worker + self.rank`")
    assert finding.prescriptions[0].slug == "seed-by-rank-and-worker"


def test_a_seed_that_is_not_the_streams_is_not_shown() -> None:
    source = """
def main(rank):
    torch.manual_seed(42 + rank)
    train()
"""
    (finding,) = told({0: (42, 43), 1: (43, 44)}, source)
    init = source.replace("main(rank)", "init_fn(worker_id)").replace("42 + rank", "42 + rank + worker_id")
    (with_init,) = told({0: (42, 43), 1: (43, 44)}, init)

    assert finding.prescriptions[0].slug == "shard-the-stream"
    assert with_init.place.line == 3


def test_streams_of_their_own_and_streams_that_prove_nothing_are_not_told() -> None:
    assert told({0: (1, 2), 1: (3, 4)}) == []
    assert told({0: (1, 2), 1: (2, 3)}, length=7) == []  # too few
    assert told({0: (1, 2), 1: (2, 3)}, of=7) == []  # seven samples, again and again
    assert told({0: (1, 2), 1: (2, 3)}, flags=STREAM | PassFlag.UNORDERED) == []  # whose batches these are is not known


def test_ranks_of_which_another_one_reads_all_the_same_are_told_as_that_alone() -> None:
    (finding,) = told({0: (1, 2), 1: (1, 2)})

    assert finding.title == "ranks 0-1 read the same stream: Digits yields the same samples on each"


def test_a_pass_that_was_left_is_over_when_the_next_one_begins() -> None:
    """Ranks that train models of their own leave an endless stream, and what they exchange later is not of its batches."""
    orders = {0: handed(stream(42), stream(43)), 1: handed(stream(43), stream(44))}
    job = sampled_job(ranks=2, length=-1)
    job.train(orders=orders, sampler="", workers=2, flags=STREAM)
    job.evaluate(orders={0: [1, 2], 1: [3, 4]}, sampler="")
    known = SampleOrders.of(job.recording())
    left = SampleOrders(
        {rank: (replace(passes[0], ended_ns=0), *passes[1:]) for rank, passes in known.by_rank.items()}, 2
    )
    begun = {rank: passes[1].started_ns for rank, passes in left.by_rank.items()}
    sets = (ReplicaSet((0, 1), "DistributedDataParallel", True),)

    def found(after_ns: int) -> int:
        calls = {rank: np.array([begun[rank] + after_ns]) for rank in (0, 1)}
        return len(list(same_workers(left, Replicas(sets, calls))))

    assert (found(-1), found(1)) == (1, 0)
