"""The draws of torch's own samplers are worked out as torch makes them, and travel in no bundle; all others do."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data.distributed import DistributedSampler

from distdoctor.recording.sampler_order import draws_of, left_out, put_back, require_foretold, shuffled
from distdoctor.recording.trace.layout import BLOCK, BLOCK_INDICES, PASS, PassFlag
from distdoctor.recording.trace.reader import Rows, dtype_of


@pytest.mark.parametrize(("length", "seed"), [(1, 0), (2, 5), (1438, 3), (70_000, 1 << 40)])
def test_a_shuffle_is_that_of_torch(length: int, seed: int) -> None:
    torchs = torch.randperm(length, generator=torch.Generator().manual_seed(seed)).numpy()

    assert np.array_equal(shuffled(length, seed, length), torchs)
    assert np.array_equal(shuffled(length, seed, 64)[:64], torchs[:64])


def pass_of(length: int, replicas: int, rank: int, epoch: int, drawn: int, flags: PassFlag) -> Rows:
    row: Rows = np.zeros(1, dtype_of(PASS))
    row["seq"], row["dataset_length"], row["num_replicas"], row["sampler_rank"] = 1, length, replicas, rank
    row["seed"], row["epoch_told"], row["drawn"], row["flags"], row["keep_one_in"] = 7, epoch, drawn, int(flags), 1
    return row


@pytest.mark.parametrize("length", [96, 1438, 5000])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_the_draws_of_a_distributed_sampler_are_left_out_and_put_back(
    length: int, drop_last: bool, shuffle: bool
) -> None:
    flags = PassFlag.SHUFFLE * shuffle | PassFlag.DROP_LAST * drop_last
    sampler = DistributedSampler(range(length), 5, 3, shuffle=shuffle, seed=7, drop_last=drop_last)
    sampler.set_epoch(2)
    draws = np.array(list(sampler), np.uint32)
    passes, blocks = (
        pass_of(length, 5, 3, 2, len(draws), flags),
        np.zeros(-(-len(draws) // BLOCK_INDICES), dtype_of(BLOCK)),
    )
    for number, block in enumerate(blocks):
        part = draws[number * BLOCK_INDICES : (number + 1) * BLOCK_INDICES]
        block["pass_seq"], block["block_number"] = 1, number
        block["indices"][: len(part)] = part

    told, foretold = left_out(passes, blocks)
    assert foretold == list(range(len(blocks)))
    assert not told["indices"].any()
    put_back(passes, told, foretold)

    assert told.tobytes() == blocks.tobytes()


def test_draws_of_any_other_order_travel() -> None:
    passes, blocks = pass_of(96, 1, 0, 0, 96, PassFlag.SHUFFLE), np.zeros(1, dtype_of(BLOCK))
    blocks["pass_seq"] = 1
    blocks["indices"][0, :96] = np.arange(96)[::-1]

    told, foretold = left_out(passes, blocks)

    assert foretold == []
    assert told.tobytes() == blocks.tobytes()
    passes["seed"] = -1
    assert draws_of(passes[0], 0, 96) is None
    with pytest.raises(ValueError, match="nothing foretells"):
        require_foretold(passes, told, [0])
