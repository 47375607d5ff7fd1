"""The accounting of samples equals a brute-force one, whatever the data set, the world and the sampler."""

from __future__ import annotations

import itertools
import tempfile
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler
from torch.utils.data.distributed import DistributedSampler

from distdoctor.diagnosis.data.repeated_orders import repetitions
from distdoctor.diagnosis.data.samples import LoaderPass, SampleOrders, overlap, repeats_within, unseen
from distdoctor.diagnosis.data.sharing import same_data, shared_samples
from distdoctor.diagnosis.facts.replicas import Replicas
from distdoctor.probe.samples.sample_pass import MOST_BLOCKS, PassWriter
from distdoctor.probe.writer import TraceWriter, file_name
from distdoctor.recording.trace.layout import BLOCK_INDICES, PassFlag
from distdoctor.recording.trace.reader import read_trace
from distdoctor.recording.trace.run_folder import log_of
from distdoctor.testing.samples import sampled_job

SIZES = st.integers(1, 120)
WORLDS = st.integers(2, 6)


def shares(
    length: int, world: int, *, shuffle: bool, drop_last: bool, epoch: int = 0, seed: int = 0
) -> dict[int, list[int]]:
    """What torch's own samplers draw."""
    samplers = [
        DistributedSampler(range(length), world, rank, shuffle, seed, drop_last)  # type: ignore[arg-type]
        for rank in range(world)
    ]
    for sampler in samplers:
        sampler.set_epoch(epoch)
    return {rank: list(sampler) for rank, sampler in enumerate(samplers)}


def batches(draws: list[int], size: int, drop_last: bool) -> list[int]:
    return list(itertools.chain.from_iterable(BatchSampler(draws, size, drop_last)))


@st.composite
def epochs(draw: st.DrawFn) -> dict[str, Any]:
    """A data set, a world, how it is divided, and the epochs that each rank makes of it."""
    length, world = draw(SIZES), draw(WORLDS)
    shuffle, drops, drops_batches = draw(st.booleans()), draw(st.booleans()), draw(st.booleans())
    assume(not drops or length >= world)
    size, count = draw(st.integers(1, 16)), draw(st.integers(1, 3))
    made = [
        {
            r: batches(d, size, drops_batches)
            for r, d in shares(length, world, shuffle=shuffle, drop_last=drops, epoch=e).items()
        }
        for e in range(count)
    ]
    return {"length": length, "world": world, "shuffle": shuffle, "drops": drops, "size": size, "epochs": made}


def job_of(case: dict[str, Any], **changes: Any) -> SampleOrders:
    job = sampled_job(ranks=case["world"], length=case["length"])
    flags = (
        PassFlag.DISTRIBUTED_SAMPLER | PassFlag.SHUFFLE_KNOWN | (PassFlag.DROP_LAST if case["drops"] else PassFlag(0))
    )
    for number, orders in enumerate(case["epochs"]):
        told = {"epoch_told": number, "set_epoch_calls": number + 1, "set_epoch_site": "train.py:29 train"}
        job.train(orders=orders, shuffle=case["shuffle"], flags=flags, batch_size=case["size"], **{**told, **changes})
    return SampleOrders.of(job.recording())


@given(epochs())
def test_torchs_own_samplers_are_never_accused(case: dict[str, Any]) -> None:
    orders = job_of(case)
    assert list(shared_samples(orders)) == []
    assert list(repetitions(orders, {})) == []
    replicas = Replicas.of(sampled_job(ranks=case["world"], length=case["length"]).recording())
    assert list(same_data(orders, replicas)) == []


@given(epochs())
def test_padding_and_unseen_samples_are_counted_exactly(case: dict[str, Any]) -> None:
    orders = job_of(case)
    for number, drawn in enumerate(case["epochs"]):
        passes = [orders.by_rank[rank][number] for rank in range(case["world"])]
        everything = Counter(itertools.chain.from_iterable(drawn.values()))
        assert set(map(int, unseen(passes, case["length"]))) == set(range(case["length"])) - set(everything)
        together = Counter(int(i) for one in passes for i in [*one.indices, *one.padding])
        assert together == everything
        kept = Counter(int(i) for one in passes for i in one.indices)
        assert max(kept.values(), default=0) <= 1  # what is drawn twice is drawn so by padding alone
        assert all(repeats_within(one) == 0 for one in passes)


@given(epochs(), st.data())
def test_a_planted_overlap_is_found_and_nothing_else(case: dict[str, Any], data: st.DataObject) -> None:
    assume(case["length"] >= 2 * case["world"])
    drawn = case["epochs"][0]
    real = {rank: list(dict.fromkeys(d)) for rank, d in drawn.items()}
    thief, victim = data.draw(st.permutations(range(case["world"])))[:2]
    whole = -(-case["length"] // case["world"]) - 1
    assume(min(len(real[thief]), len(real[victim])) >= whole > 0)
    at, stolen = data.draw(st.integers(0, whole - 1)), data.draw(st.integers(0, whole - 1))
    sample = real[victim][stolen]
    drawn[thief][at] = sample
    case["epochs"] = [drawn]
    (found,) = shared_samples(job_of(case))
    assert (found.overlap.shared, found.overlap.examples) == (1, (sample,))
    assert found.overlap.ranks == tuple(sorted((thief, victim)))
    assert found.proven


@given(st.lists(st.lists(st.integers(0, 50), max_size=40), min_size=2, max_size=6))
def test_overlaps_equal_those_of_brute_force(drawn: list[list[int]]) -> None:
    job = sampled_job(ranks=len(drawn), length=51).train(orders=dict(enumerate(drawn)), flags=0)
    passes = [passes[0] for passes in SampleOrders.of(job.recording()).by_rank.values()]
    owners = Counter(index for draws in drawn for index in set(draws))
    shared = sorted(index for index, count in owners.items() if count > 1)
    found = overlap(passes)
    assert (found.shared, list(found.examples)) == (len(shared), shared[:5])
    assert found.ranks == tuple(rank for rank, draws in enumerate(drawn) if set(draws) & set(shared))


@given(st.integers(20, 120), WORLDS, st.integers(0, 3), st.booleans())
def test_a_repeated_epoch_is_found_where_it_is_repeated(length: int, world: int, at: int, constant: bool) -> None:
    told = [0, 1, 2, 3, 4]
    told[at + 1] = told[at]
    job = sampled_job(ranks=world, length=length)
    for number, epoch in enumerate(told):
        calls = number + 1 if constant else len(set(told[: number + 1]))
        orders = shares(length, world, shuffle=True, drop_last=False, epoch=epoch)
        job.train(orders=orders, epoch_told=epoch, set_epoch_calls=calls)
    (found,) = repetitions(SampleOrders.of(job.recording()), {})
    assert (found.epoch, found.ranks, found.told_again) == (at + 1, tuple(range(world)), constant)


@given(SIZES, WORLDS, st.integers(1, 12), st.booleans())
def test_what_accelerate_fills_up_is_told_apart(length: int, world: int, size: int, split: bool) -> None:
    loaders = pytest.importorskip("accelerate.data_loader")
    whole = BatchSampler(range(length), size * world if split else size, False)  # type: ignore[arg-type]
    drawn = {
        rank: list(itertools.chain.from_iterable(loaders.BatchSamplerShard(whole, world, rank, split)))
        for rank in range(world)
    }
    job = sampled_job(ranks=world, length=length)
    about = {"sampler": "BatchSamplerShard>BatchSampler>RandomSampler", "flags": PassFlag.EVENED, "batch_size": size}
    ranks = {rank: rank for rank in range(world)}
    job.train(orders=drawn, num_replicas=world, sampler_rank=ranks, **about)
    orders = SampleOrders.of(job.recording())
    passes = [one for passes in orders.by_rank.values() for one in passes]
    real = [int(index) for one in passes for index in one.indices]
    assert sorted(real) == list(range(length))
    assert list(unseen(passes, length)) == []
    assert list(shared_samples(orders)) == []


# --- what the probe writes, read back --------------------------------------------------------------------------------------


def written(batches: list[list[int]], keep: int = 1, passes: int = 1, until: int | None = None) -> list[LoaderPass]:
    """Passes written by the probe's own hand into a trace, and read from it."""
    with tempfile.TemporaryDirectory() as folder:
        trace = TraceWriter(folder, 0, 1, 0, 0)
        stream = SimpleNamespace(trace=trace, steps=0, optimizer=0)
        for number in range(passes):
            seq = trace.passes.write(keep_one_in=keep, loader=1, pass_number=number + 1)
            writer = PassWriter(stream, None, 0, seq, PassFlag(0), keep)  # type: ignore[arg-type]
            for batch in batches[:until]:
                writer.draw(batch)
            if until is None:
                writer.exhausted()
        orders = SampleOrders.of(_recording(log_of(read_trace(Path(folder) / file_name(0, 0)))))
    return list(orders.by_rank[0])


def _recording(log: Any) -> Any:
    from distdoctor.recording.recording import Job, Recording

    return Recording(Job(world_size=1), {0: log})


@given(st.integers(0, 9000), st.integers(1, 1500), st.sampled_from([1, 2, 8, 256]), st.randoms(use_true_random=False))
def test_a_trace_holds_every_kept_index_in_order(length: int, size: int, keep: int, random: Any) -> None:
    draws = list(range(length))
    random.shuffle(draws)
    (one,) = written([draws[at : at + size] for at in range(0, length, size)], keep)
    assert (one.drawn, one.whole, one.exhausted) == (length, True, True)
    assert list(map(int, one.first)) == (draws if keep == 1 else draws[:BLOCK_INDICES])
    (twin,) = written([sorted(draws)[at : at + size] for at in range(0, length, size)], keep)
    chosen = set(map(int, twin.indices))
    assert list(map(int, one.indices)) == [index for index in draws if index in chosen]
    if keep == 1:
        assert len(chosen) == length


def test_a_pass_that_still_runs_is_read_up_to_the_last_batch() -> None:
    draws = list(range(5000))
    for keep, until in itertools.product((1, 4), (1, 7, 8, 9, 30)):
        (one,) = written([draws[at : at + 130] for at in range(0, 5000, 130)], keep, until=until)
        assert (one.drawn, one.whole, one.exhausted) == (130 * until, True, False)
        assert list(map(int, one.first)) == draws[: min(130 * until, BLOCK_INDICES if keep > 1 else 5000)]


def test_a_pass_without_end_keeps_its_beginning_and_says_that_it_is_cut() -> None:
    length = (MOST_BLOCKS + 3) * BLOCK_INDICES
    (one,) = written([list(range(length))])
    assert one.drawn == length
    assert not one.whole
    assert list(map(int, one.indices)) == list(range(MOST_BLOCKS * BLOCK_INDICES))


def test_passes_whose_blocks_are_gone_are_not_called_whole() -> None:
    draws = [list(range(3 * BLOCK_INDICES))]
    passes = written(draws, passes=120)
    assert [passes[0].whole, passes[-1].whole] == [False, True]
    for one in passes:
        assert np.isin(one.indices, draws[0]).all()
        assert not one.whole or len(one.indices) == len(draws[0])
