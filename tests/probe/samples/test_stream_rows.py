"""Fingerprints of the samples of iterable data: the same for the same sample, and thinned alike on every rank."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from distdoctor.diagnosis.data.samples import LoaderPass, passes_of
from distdoctor.probe.samples.fingerprints import row_fingerprints
from distdoctor.probe.samples.stream_rows import MOST_BLOCKS, StreamRows
from distdoctor.probe.writer import TraceWriter
from distdoctor.recording.open import read_any
from distdoctor.recording.trace.layout import BLOCK_INDICES, PassFlag
from distdoctor.recording.trace.sampled_indices import LARGEST, kept


def pass_with(folder: Path, rank: int, batches: list[array[int]]) -> LoaderPass:
    """What is read back of a pass that handed these over."""
    trace = TraceWriter(str(folder), rank, 2, rank, 0)
    rows = StreamRows(trace, trace.passes.write(started_ns=1, flags=PassFlag.ITERABLE))
    for batch in batches:
        rows.add(batch, 0)
    (one,) = passes_of(read_any(folder).ranks[rank])
    return one


@pytest.mark.parametrize("batch", [7, 1000, 9000])
def test_what_is_kept_of_many_samples_is_the_same_on_every_rank(tmp_path: Path, batch: int) -> None:
    words = np.random.default_rng(0).integers(1, 1 << 32, 30_000, dtype=np.uint32)
    orders = words[:20_000], np.random.default_rng(1).permutation(words[10_000:])
    read = [
        pass_with(tmp_path, rank, [array("I", order[at : at + batch].tobytes()) for at in range(0, len(order), batch)])
        for rank, order in enumerate(orders)
    ]
    for one, order in zip(read, orders, strict=True):
        assert one.rows_one_in in (8, 16)
        assert 0 < len(one.rows) <= MOST_BLOCKS * BLOCK_INDICES
        assert 0.7 < len(one.rows) * one.rows_one_in / len(order) < 1.3
        assert set(one.rows.tolist()) <= set(order.tolist())
        assert np.array_equal(one.rows, order[np.isin(order, one.rows)])  # in their order
    shared = set(read[0].rows.tolist()) & set(read[1].rows.tolist())
    assert 0.35 < len(shared) / min(len(one.rows) for one in read) < 0.65


def test_a_pass_of_few_samples_is_kept_whole(tmp_path: Path) -> None:
    one = pass_with(tmp_path, 0, [array("I", [3, 1]), array("I", [2])])
    assert (one.rows.tolist(), one.rows_one_in) == ([3, 1, 2], 1)


@pytest.mark.parametrize(
    "of",
    [
        lambda rows: rows,
        lambda rows: (rows, torch.arange(len(rows))),
        lambda rows: {"ids": rows.long(), "more": [rows, rows]},
        lambda rows: [rows.repeat(1, 500)],
    ],
    ids=["a tensor", "inputs and targets", "a dictionary", "long rows"],
)
def test_a_sample_has_one_fingerprint_wherever_it_stands_in_its_batch(of: Any) -> None:
    rows = torch.arange(24.0).reshape(8, 3)
    found = row_fingerprints(of(rows))
    assert found is not None
    assert len(set(found)) == 8
    alone = row_fingerprints(torch.arange(24.0).reshape(8, 3)[5:6])
    assert alone is not None
    if of(rows) is rows:
        assert alone[0] == found[5]


@pytest.mark.parametrize(
    "batch",
    [["a", "b"], 3, torch.tensor(1.0), [torch.ones(2), torch.ones(3)], torch.ones(4, 6).t(), torch.empty(0, 3), []],
    ids=["texts", "a number", "no rows", "two lengths", "not in one piece", "empty", "nothing"],
)
def test_other_batches_have_none(batch: Any) -> None:
    assert row_fingerprints(batch) is None


def test_samples_that_are_all_the_same_end_the_thinning(tmp_path: Path) -> None:
    same = next(word for word in range(1, 1 << 20) if kept(array("I", [word]), LARGEST))

    one = pass_with(tmp_path, 0, [array("I", [same]) * 5000, array("I", [same]) * 5000])

    assert set(one.rows.tolist()) == {same}
    assert len(one.rows) <= MOST_BLOCKS * BLOCK_INDICES
