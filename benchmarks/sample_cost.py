"""What the samples stream costs a DataLoader: throughput with and without it, in turns within one process.

    python benchmarks/sample_cost.py [--rounds 9] [--seconds 0.4]

Each round runs every case without and with the stream, one right after the other, in changing order; ratios are those of the
medians. On a busy machine they drown in noise of many per cent, so what the stream does for a batch is also measured alone: the
CPU time of drawing batches of indices with and without it, as a share of what the loader's main process spends on a batch without
it. The last part writes one rank's accounting of 10^8 samples on 8 ranks, and says how much memory that takes.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from distdoctor.probe import samples, wrappers
from distdoctor.probe.context import Rank
from distdoctor.probe.tape import Tape
from distdoctor.recording import kept_indices
from distdoctor.recording.layout import BLOCK_INDICES, PassFlag


class Images(Dataset[torch.Tensor]):
    """Samples that cost what a small decoded and normalised image costs."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        raw = torch.full((3, 64, 64), index % 256, dtype=torch.uint8)
        return (raw.float() / 255 - 0.5) / 0.25


class Timing:
    """Seconds per batch of one case, wall and CPU, without [0] and with [1] the stream."""

    def __init__(self) -> None:
        self.wall: tuple[list[float], list[float]] = ([], [])
        self.cpu: tuple[list[float], list[float]] = ([], [])


def run(loader: DataLoader[Any], seconds: float) -> tuple[float, float]:
    """Seconds per batch, wall and CPU, without the first batches (workers start there)."""
    iterator = iter(loader)
    for _ in range(8):
        next(iterator)
    count, wall, cpu = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - wall < seconds:
        for _ in range(8):
            next(iterator)
        count += 8
    return (time.perf_counter() - wall) / count, (time.process_time() - cpu) / count


def cases() -> dict[str, Callable[[], DataLoader[Any]]]:
    numbers, images = TensorDataset(torch.randn(2_000_000, 8)), Images()

    def loader(data: Any, size: int, workers: int) -> Callable[[], DataLoader[Any]]:
        return lambda: DataLoader(data, batch_size=size, num_workers=workers)

    found = {}
    for workers in (0, 4):
        found[f"numbers, batches of 32, {workers} workers"] = loader(numbers, 32, workers)
        found[f"numbers, batches of 256, {workers} workers"] = loader(numbers, 256, workers)
        found[f"images, batches of 32, {workers} workers"] = loader(images, 32, workers)
    return found


def throughput(rank: Rank, rounds: int, seconds: float) -> dict[str, Timing]:
    timings = {name: Timing() for name in cases()}
    for number in range(rounds):
        for name, make in cases().items():
            for watched in (number % 2, 1 - number % 2):
                if watched:
                    samples.install(rank)
                wall, cpu = run(make(), seconds)
                wrappers.remove_all()
                timings[name].wall[watched].append(wall)
                timings[name].cpu[watched].append(cpu)
    return timings


def alone(rank: Rank, data: Any, size: int, batches: int = 4000, rounds: int = 9) -> float:
    """CPU seconds that the stream takes for one batch of `size` indices of `data`."""
    prepared = [list(range(first, first + size)) for first in range(0, batches * 7, 7)]
    spent: tuple[list[float], list[float]] = ([], [])
    for number in range(2 * rounds):
        if number % 2:
            samples.install(rank)
        iterator = iter(DataLoader(data, batch_sampler=prepared))
        iterator._next_index()
        began = time.process_time()
        for _ in range(batches - 1):
            iterator._next_index()
        spent[number % 2].append((time.process_time() - began) / (batches - 1))
        wrappers.remove_all()
    return statistics.median(spent[1]) - statistics.median(spent[0])


def hundred_million(tape: Tape) -> str:
    """One rank's pass over its eighth of 10^8 samples."""
    length, size = 100_000_000 // 8, 1024
    keep = kept_indices.one_in(length, samples.TRAINING_BLOCKS * BLOCK_INDICES)
    values = [0] * (len(tape.passes.fields) - 2)
    stream: Any = SimpleNamespace(tape=tape, steps=0, optimizer=0)
    one = samples.Pass(stream, None, 0, tape.passes.write(*values), PassFlag(0), keep)
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    for first in range(0, length, size):
        one.draw(list(range(first, first + size)))
    seconds = time.process_time() - began
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return (
        f"10^8 samples on 8 ranks: {one.drawn:,} draws of one rank, one index in {keep} kept, {one.blocks} blocks of 4 KiB, "
        f"{grown:.1f} MiB more memory, {seconds / one.drawn * 1e9:.0f} ns a draw"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.4)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rank = Rank(folder, frozenset({"samples"}))
        rank.tape = Tape(folder, 0, 1, 0, 0)
        own = {size: alone(rank, data, size) * 1e6 for size, data in ((32, Images()), (256, Images()))}
        timings = throughput(rank, asked.rounds, asked.seconds)
        assert not rank.silent, "the stream fell silent"
        wide = f"{'us/batch':>9} {'with':>8} {'ratio':>6} {'CPU us':>8} {'with':>8} {'ratio':>6}"
        print(f"{'case':35} {wide} {'own us':>7} {'share':>6}")
        for name, timing in timings.items():
            wall = [statistics.median(side) * 1e6 for side in timing.wall]
            cpu = [statistics.median(side) * 1e6 for side in timing.cpu]
            mine = own[256 if "256" in name else 32]
            print(
                f"{name:35} {wall[0]:9.1f} {wall[1]:8.1f} {wall[1] / wall[0]:6.3f} {cpu[0]:8.1f} {cpu[1]:8.1f} "
                f"{cpu[1] / cpu[0]:6.3f} {mine:7.2f} {mine / cpu[0]:6.2%}"
            )
        print(hundred_million(rank.tape))


if __name__ == "__main__":
    main()
