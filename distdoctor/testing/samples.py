"""Recordings of who read what, made by hand: for tests of checks on data and samplers.

job = sampled_job(ranks=2, length=100)
job.train(epoch=0).train(epoch=0)        # the order of epoch 0 twice
sick = job.recording()
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np

from distdoctor.recording.recording import Job, Recording
from distdoctor.recording.trace.events import Averaging
from distdoctor.recording.trace.layout import PassFlag
from distdoctor.testing.rank_trace import MILLISECOND, TraceBuilder, noting_sources

SHARDED = PassFlag.DISTRIBUTED_SAMPLER | PassFlag.SHUFFLE_KNOWN
TRAIN_LOOP, TRAIN_LOADER = "train.py:31 train", "train.py:12 main"
TEST_LOOP, TEST_LOADER = "train.py:47 evaluate", "train.py:14 main"
SET_EPOCH = "train.py:29 train"
SOURCE = (
    "def main(data, sampler, step, epochs):\n"
    + "\n" * 10
    + "    loader = DataLoader(data, batch_size=4, sampler=sampler)\n"
    + "\n" * 15
    + "    for epoch in range(epochs):\n        sampler.set_epoch(epochs)\n\n"
    + "        for batch in loader:\n            step(batch)\n"
)
"""Of the job that `sampled_job` imagines: the loader is made in line 12, set_epoch called in 29, the loader iterated in 31."""


def share(length: int, replicas: int, rank: int, *, epoch: int = 0, shuffle: bool = True, drop_last: bool = False,
          seed: int = 0) -> list[int]:  # fmt: skip
    """The indices that DistributedSampler gives to one rank (any shuffle that depends on seed + epoch will do here)."""
    order = np.random.default_rng(seed + epoch).permutation(length) if shuffle else np.arange(length)
    if drop_last:
        each = length // replicas
        return [int(i) for i in order[: each * replicas][rank::replicas]]
    each = -(-length // replicas)
    whole = np.tile(order, -(-each * replicas // length))[: each * replicas]
    return [int(i) for i in whole[rank::replicas]]


class SampledJob:
    """The ranks of one job and the passes that they make, all of them side by side."""

    def __init__(
        self, ranks: int, length: int, *, averaged_by: str = "DistributedDataParallel", pieces: int = 8
    ) -> None:
        self.length, self.world_size, self.pieces = length, ranks, pieces
        self.logs = [TraceBuilder(rank, world_size=ranks) for rank in range(ranks)]
        self.steps = 0
        if averaged_by:
            self.averages(range(ranks), by=averaged_by)

    def averages(self, ranks: Iterable[int], *, by: str = "DistributedDataParallel") -> Self:
        """These ranks average their gradients."""
        members = list(ranks)
        for rank in members:
            self.logs[rank].note(Averaging(tuple(members), by))
        return self

    def train(self, *, epoch: int = 0, orders: Mapping[int, Sequence[int]] | None = None, only: Iterable[int] | None = None,
              shuffle: bool = True, **fields: Any) -> Self:  # fmt: skip
        """A training pass of every rank (or of `only`). `orders` default to the shares of a DistributedSampler."""
        flags = PassFlag.STEPPED | PassFlag.GRADIENTS_ON | (PassFlag.SHUFFLE if shuffle else PassFlag(0))
        places = {"loop_site": TRAIN_LOOP, "made_site": TRAIN_LOADER}
        self._pass(flags, {"loader": 1, "optimizer": 1, **places, **fields}, epoch, orders, only, shuffle)
        self.steps += 4
        for log in self.logs:
            for _ in range(4):
                log.step()
        return self

    def evaluate(self, *, orders: Mapping[int, Sequence[int]] | None = None, only: Iterable[int] | None = None,
                 **fields: Any) -> Self:  # fmt: skip
        """A pass without gradients over another loader, by default with shares in order."""
        places = {"loop_site": TEST_LOOP, "made_site": TEST_LOADER}
        self._pass(PassFlag(0), {"loader": 2, **places, **fields}, 0, orders, only, False)
        return self

    def _pass(self, flags: PassFlag, fields: dict[str, Any], epoch: int, orders: Mapping[int, Sequence[int]] | None,
              only: Iterable[int] | None, shuffle: bool) -> None:  # fmt: skip
        name = fields.setdefault("sampler", "BatchSampler>DistributedSampler")
        sharded = "DistributedSampler" in name
        flags |= PassFlag(fields.pop("flags", SHARDED if sharded else 0))
        digest = fields.pop("digest", "0123456789abcdef")
        outer, bag, objects = fields.pop("outer", digest), fields.pop("bag", ""), fields.pop("objects", "")
        length = fields.setdefault("dataset_length", self.length)
        for rank in range(self.world_size) if only is None else only:
            own = {key: value[rank] if isinstance(value, dict) else value for key, value in fields.items()}
            replicas = own.pop("num_replicas", self.world_size if sharded else 0)
            sampler_rank = own.pop("sampler_rank", rank if sharded else -1)
            drop_last = bool(flags & PassFlag.DROP_LAST)
            indices = (
                orders[rank]
                if orders is not None
                else share(length, replicas, sampler_rank, epoch=epoch, shuffle=shuffle, drop_last=drop_last)
            )
            own.setdefault("batch_size", 4)
            own_digest = digest[rank] if isinstance(digest, dict) else digest
            own_outer = outer[rank] if isinstance(outer, dict) else outer
            log = self.logs[rank]
            began = log.now + MILLISECOND
            if own.pop("running", False):
                own["ended_ns"] = 0
            else:
                own["ended_ns"] = began + 100 * MILLISECOND
            log.loader_pass(
                indices=indices,
                flags=flags,
                started_ns=began,
                num_replicas=replicas,
                sampler_rank=sampler_rank,
                first_step=own.pop("first_step", self.steps),
                dataset=f"Digits\0{self.length}\0{own_digest}\0{self.pieces}\0{own_outer}\0{bag}\0{objects}",
                **own,
            )
            log.now = began + 101 * MILLISECOND

    def recording(self, *, running: bool = False, sources: Mapping[str, str] | None = None) -> Recording:
        """What would have been read of this job."""
        job = Job(argv=("train.py",), world_size=self.world_size, running=running)
        logs = {log.rank: log.build() for log in self.logs}
        sources = {"/job/train.py": SOURCE} if sources is None else sources
        return Recording(job, noting_sources(logs, sources), sources=sources)


def sampled_job(ranks: int = 2, length: int = 100, **about: Any) -> SampledJob:
    """A job of `ranks` replicas over a data set of `length` samples; nothing has been read yet."""
    return SampledJob(ranks, length, **about)
