"""However many samples a pass draws: what is told of it equals a brute-force account, and says so where it cannot be exact."""

from __future__ import annotations

import errno
import os
import tempfile
from collections import Counter
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distdoctor.diagnosis.data.resumption import compare
from distdoctor.diagnosis.data.sample_account import EpochAccount, accounts
from distdoctor.diagnosis.data.samples import LoaderPass, SampleOrders, Together, overlap, repeats_within
from distdoctor.diagnosis.data.undrawn import hole_of
from distdoctor.probe.samples import bitmap_writer
from distdoctor.probe.samples.bitmap_writer import BitmapWriters
from distdoctor.probe.samples.sample_pass import MOST_BLOCKS, PassWriter
from distdoctor.probe.writer import TraceWriter
from distdoctor.recording.recording import Recording
from distdoctor.recording.trace.bitmap_file import file_name
from distdoctor.recording.trace.layout import BLOCK_INDICES, PassFlag
from distdoctor.recording.trace.run_folder import read_run
from distdoctor.recording.trace.sample_bitmap import SampleBitmap, kept_files, last, missing, pieces

TRAINS = PassFlag.STEPPED | PassFlag.GRADIENTS_ON


class Job:
    """Ranks whose passes are written by the probe's own hand, where one index in `keep` fits the trace."""

    def __init__(self, folder: Path, world: int, length: int, keep: int = 8) -> None:
        self.folder, self.length, self.keep = folder, length, keep
        self.traces = [TraceWriter(str(folder), rank, world, rank, 0) for rank in range(world)]
        self.sets = [BitmapWriters(str(folder), rank, 0) for rank in range(world)]

    def epoch(self, drawn: list[list[int]], *, size: int = 700, padded: bool = False, over: bool = True) -> None:
        for rank, draws in enumerate(drawn):
            trace, sets = self.traces[rank], self.sets[rank]
            text = f"Numbers\0{self.length}\0abcd\x004\0abcd"
            about = {
                "dataset_length": self.length, "dataset": trace.texts.id(text), "keep_one_in": self.keep, "batch_size": size,
                "flags": TRAINS | (PassFlag.DISTRIBUTED_SAMPLER if padded else 0), "num_replicas": len(drawn),
                "sampler_rank": rank, "loader": 1, "pass_number": 1, "started_ns": 1,
            }  # fmt: skip
            seq = trace.passes.write(**{name: int(value) for name, value in about.items()})
            stream: Any = SimpleNamespace(trace=trace, steps=0, optimizer=0)
            flags = PassFlag(int(about["flags"]))
            new_set = (lambda s, sets=sets: sets.begin(s, self.length)) if self.keep > 1 else None
            writer = PassWriter(stream, None, 0, seq, flags, self.keep, new_set)
            for at in range(0, len(draws), size):
                writer.draw(draws[at : at + size])
            if over:
                writer.exhausted()

    def recording(self) -> Recording:
        return read_run(self.folder)

    def passes(self, number: int = 0) -> list[LoaderPass]:
        return [passes[number] for passes in SampleOrders.of(self.recording()).by_rank.values()]

    def account(self, number: int = 0) -> EpochAccount:
        (one,) = accounts(SampleOrders.of(self.recording()))
        return one.epochs[number]


@st.composite
def epochs(draw: st.DrawFn) -> tuple[int, list[list[int]]]:
    """A data set and what each rank draws of it: disjoint, overlapping or with replacement."""
    world = draw(st.integers(1, 4))
    length = draw(st.integers(1, 30_000))
    random = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    kind = draw(st.sampled_from(["shares", "replacement", "overlapping"]))
    if kind == "shares":
        order = random.permutation(length)
        return length, [order[rank::world].tolist() for rank in range(world)]
    counts = [draw(st.integers(0, 8000)) for _ in range(world)]
    if kind == "replacement":
        return length, [random.integers(0, length, n).tolist() for n in counts]
    return length, [random.permutation(length)[:n].tolist() for n in counts]


@given(epochs(), st.integers(1, 1500), st.booleans())
def test_distinct_shared_and_unseen_samples_are_those_of_brute_force(
    case: tuple[int, list[list[int]]], size: int, over: bool
) -> None:
    length, drawn = case
    with tempfile.TemporaryDirectory() as folder:
        job = Job(Path(folder), len(drawn), length)
        job.epoch(drawn, size=size, over=over)
        owners = Counter(index for draws in drawn for index in set(draws))
        shared = sorted(index for index, count in owners.items() if count > 1)
        orders = SampleOrders.of(job.recording())  # megabytes of rings: read once
        passes = [one[0] for one in orders.by_rank.values()]
        assert all(one.drawn_set is not None for one in passes)
        (loader,) = accounts(orders)
        account = loader.epochs[0]
        assert account.keep_one_in == 1
        assert {s.rank: (s.drawn, s.distinct) for s in account.shares} == {
            rank: (len(draws), len(set(draws))) for rank, draws in enumerate(drawn)
        }
        assert account.shared == len(shared)
        both = {(a, b): len(set(drawn[a]) & set(drawn[b])) for a, b in combinations(range(len(drawn)), 2)}
        assert {(a, b): n for a, b, n in account.pairs} == {pair: n for pair, n in both.items() if n}
        assert account.unseen == (length - len(owners) if over else -1)
        if len(passes) > 1:
            found = overlap(passes)
            assert (found.shared, list(found.examples), found.keep_one_in) == (len(shared), shared[:5], 1)
        assert [repeats_within(one) for one in passes] == [len(draws) - len(set(draws)) for draws in drawn]


@given(st.integers(1, 300), st.lists(st.lists(st.integers(0, 299), max_size=30), min_size=1, max_size=3))
def test_what_is_missing_is_found_with_its_ends_and_pieces(length: int, drawn: list[list[int]]) -> None:
    sets = [SampleBitmap.of([index for index in draws if index < length], length) for draws in drawn]
    left = sorted(set(range(length)) - {index for draws in drawn for index in draws})
    hole = missing(sets)
    assert (len(hole), last(hole)) == (len(left), left[-1] if left else -1)
    assert pieces(hole) == sum(index - 1 not in left for index in left)
    assert hole.holds(np.arange(length, dtype=np.uint32)).tolist() == [index in left for index in range(length)]


def test_padding_is_told_apart_and_a_hole_is_counted_to_the_sample(tmp_path: Path) -> None:
    length = 20_001
    job = Job(tmp_path, 2, length)
    for _ in range(2):
        order = [index for index in range(length) if not 5000 <= index < 6000]
        job.epoch([order[:9501], [*order[9501:], 0]], padded=False)
    hole, changing = hole_of([Together(dict(enumerate(job.passes(number)))) for number in range(2)], length)
    assert (hole.count, hole.words, hole.keep_one_in, changing) == (1000, "samples 5000-5999", 1, 0)

    job = Job(tmp_path / "padded", 2, length) if (tmp_path / "padded").mkdir() is None else job
    order = list(np.random.default_rng(0).permutation(length).tolist())
    job.epoch([order[0::2], [*order[1::2], order[0]]], padded=True)
    account = job.account()
    assert [(share.distinct, share.padding) for share in account.shares] == [(10_001, 0), (10_001, 1)]
    assert (account.shared, account.unseen, account.keep_one_in) == (0, 0, 1)


def test_what_a_resumed_job_repeats_and_loses_is_counted_to_the_sample(tmp_path: Path) -> None:
    length, done = 24_001, 5_000
    order = np.random.default_rng(1).permutation(length).tolist()
    shares = [order[0::2], [*order[1::2], order[0]]]
    parts = {
        "whole": [shares],
        "before": [[share[:done] for share in shares]],
        "right": [[share[done:] for share in shares]],
        "wrong": [[share[done - 7 : -3] for share in shares]],
    }
    for name, epochs in parts.items():
        (tmp_path / name).mkdir()
        job = Job(tmp_path / name, 2, length)
        for drawn in epochs:
            job.epoch(drawn, padded=True)
    whole, before, right, wrong = (read_run(tmp_path / name) for name in parts)
    found = compare(whole, before, right)
    assert (found.repeated, found.lost, found.keep_one_in) == (0, 0, 1)
    found = compare(whole, before, wrong)
    assert (found.repeated, found.lost, found.keep_one_in) == (14, 6, 1)
    assert set(found.examples[0]) <= {index for share in shares for index in share[done - 7 : done]}


def test_a_pass_without_end_is_accounted_for_when_its_order_no_longer_fits(tmp_path: Path) -> None:
    length = 3000
    job = Job(tmp_path, 1, length, keep=2)
    rounds = 2 * (MOST_BLOCKS + 8) * BLOCK_INDICES // length + 1
    job.epoch([list(range(0, length, 2)) * 2 * rounds], over=False)
    (one,) = job.passes()
    assert one.flags & PassFlag.TRUNCATED
    assert (one.whole, one.distinct, repeats_within(one)) == (False, 1500, one.drawn - 1500)


def test_on_a_full_disk_the_pass_goes_on_and_is_told_as_an_estimate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(tmp_path, 2, 20_000)

    def full(fd: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    job.epoch([list(range(10_000)), list(range(9_000, 19_000))])
    monkeypatch.undo()
    job.epoch([list(range(10_000)), list(range(9_000, 19_000))])  # not tried again
    assert kept_files(tmp_path) == {}
    for one in job.passes(1):
        assert (one.whole, one.drawn, one.drawn_set) == (True, 10_000, None)
    assert (job.account().keep_one_in, job.account().shared) == (8, pytest.approx(1000, rel=0.5))


def test_the_oldest_sets_make_room_for_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bitmap_writer, "MOST_BYTES", 3 * 2504)
    job = Job(tmp_path, 1, 20_000)
    for _ in range(5):
        job.epoch([list(range(2000))])
    assert sorted(path.name for path in tmp_path.glob("*.drawn")) == [file_name(0, 0, seq) for seq in (3, 4, 5)]
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in tmp_path.glob("*.drawn"))
    passes = SampleOrders.of(job.recording()).by_rank[0]
    assert [one.distinct for one in passes] == [None, None, 2000, 2000, 2000]


def test_an_index_beyond_the_data_set_ends_the_set_and_nothing_else(tmp_path: Path) -> None:
    job = Job(tmp_path, 1, 5000)
    job.epoch([[*range(3000), 70_000, *range(2000)]])
    (one,) = job.passes()
    assert (one.drawn, one.whole, one.drawn_set) == (5001, True, None)


def test_a_torn_file_is_no_set(tmp_path: Path) -> None:
    job = Job(tmp_path, 1, 5000)
    job.epoch([list(range(3000))])
    (path,) = tmp_path.glob("*.drawn")
    whole = path.read_bytes()
    for torn in (b"", whole[:20], b"x" + whole[1:], whole[:100]):
        path.write_bytes(torn)
        assert job.passes()[0].drawn_set is None
