"""What the samples stream costs a DataLoader: throughput with and without it, in turns within one process.

    python benchmarks/sample_cost.py [--rounds 9] [--seconds 0.4]

Each round runs every case without and with the stream, one right after the other, in changing order; ratios are those of the
medians. On a busy machine they drown in noise of many per cent, so what the stream does for a batch is also measured alone: the
CPU time of drawing batches of indices with and without it, as a share of what the loader's main process spends on a batch without
it. The last part draws a shuffled epoch of 10^8 samples on 4 ranks and accounts for it: time, memory, disk. It takes minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from distdoctor.diagnosis.data.sample_account import accounts
from distdoctor.diagnosis.data.samples import SampleOrders
from distdoctor.probe import wrappers
from distdoctor.probe.context import Rank
from distdoctor.probe.samples import stream as samples
from distdoctor.probe.samples.bitmap_writer import BitmapWriters
from distdoctor.probe.samples.sample_pass import PassWriter
from distdoctor.probe.writer import TraceWriter
from distdoctor.recording.trace import sampled_indices
from distdoctor.recording.trace.layout import BLOCK_INDICES, PassFlag
from distdoctor.recording.trace.probe_settings import ProbeSettings
from distdoctor.recording.trace.run_folder import read_run


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


HUNDRED_MILLION, RANKS = 100_000_000, 4


def hundred_million(folder: str) -> None:
    """A shuffled epoch of 10^8 samples on 4 ranks, written by the probe's own hand and accounted for, each in its process."""
    order = np.random.default_rng(0).permutation(HUNDRED_MILLION).astype(np.uint32)
    order[1::RANKS][:1000] = order[0::RANKS][:1000]  # rank 1 draws 1,000 of rank 0's: its own are left out
    written = [_in_a_child(_draw, folder, rank, order[rank::RANKS]) for rank in range(RANKS)]
    print(
        f"10^8 samples on {RANKS} ranks, shuffled, batches of 1024. Each rank: {_middle(w['ns'] for w in written):.0f} ns of CPU "
        f"a draw, of them {_middle(w['ns'] - w['sampled_ns'] for w in written):.0f} ns for the exact set; "
        f"{_middle(w['grown'] for w in written):.1f} MiB more memory of its own, "
        f"{_middle(w['file'] for w in written):.1f} MB of disk"
    )
    told = _in_a_child(_account, folder)
    print(
        f"the account of all ranks: {told['seconds']:.2f} s, {told['grown']:.0f} MiB more memory of its own; "
        f"drawn {told['drawn']:,}, distinct {told['distinct']:,}, shared {told['shared']:,}, unseen {told['unseen']:,}, "
        f"{'exact' if told['keep_one_in'] == 1 else 'ESTIMATED'}"
    )


def _middle(values: Any) -> float:
    return statistics.median(values)


def _own_memory() -> float:
    """MiB that belong to this process alone; pages of files are the kernel's, which takes them back when it needs them."""
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("RssAnon"))


def _in_a_child(task: Callable[..., dict[str, float]], *given: Any) -> dict[str, float]:
    mine, child = os.pipe()
    pid = os.fork()
    if not pid:
        os.write(child, json.dumps(task(*given)).encode())
        os._exit(0)
    os.close(child)
    with os.fdopen(mine) as answer:
        found: dict[str, float] = json.loads(answer.read())
    os.waitpid(pid, 0)
    return found


def _draw(folder: str, rank: int, drawn: Any) -> dict[str, float]:
    spent = []
    before, grown = _own_memory(), 0.0
    for exact in (False, True):
        into = folder if exact else tempfile.mkdtemp(dir=folder)
        one = _pass(into, TraceWriter(into, rank, RANKS, rank, 0), rank, len(drawn), exact=exact)
        seconds = 0.0
        for first in range(0, len(drawn), 1024):
            batch = drawn[first : first + 1024].tolist()
            began = time.process_time()
            one.draw(batch)
            seconds += time.process_time() - began
        one.exhausted()
        spent.append(seconds / one.drawn * 1e9)
        grown = max(grown, _own_memory() - before)
    size = sum(path.stat().st_size for path in Path(folder).glob(f"rank-{rank:05d}*.drawn"))
    return {"sampled_ns": spent[0], "ns": spent[1], "grown": grown, "file": size / 1e6}


def _pass(folder: str, trace: TraceWriter, rank: int, draws: int, *, exact: bool) -> PassWriter:
    about = {
        "dataset_length": HUNDRED_MILLION, "dataset": trace.texts.id(f"Images\0{HUNDRED_MILLION}\0a\x001\0a"), "loader": 1,
        "keep_one_in": sampled_indices.one_in(draws, samples.TRAINING_BLOCKS * BLOCK_INDICES), "num_replicas": RANKS,
        "sampler_rank": rank, "pass_number": 1 + exact, "started_ns": 1 + exact, "first_step": int(exact),
    }  # fmt: skip
    seq = trace.passes.write(**about)
    sets = BitmapWriters(folder, rank, 0)
    stream: Any = SimpleNamespace(trace=trace, steps=0, optimizer=0)
    new_set = (lambda seq: sets.begin(seq, HUNDRED_MILLION)) if exact else None
    return PassWriter(stream, None, 0, seq, PassFlag(0), about["keep_one_in"], new_set)


def _account(folder: str) -> dict[str, float]:
    before, began = _own_memory(), time.perf_counter()
    (loader,) = accounts(SampleOrders.of(read_run(Path(folder))))
    last = loader.epochs[-1]
    return {
        "seconds": time.perf_counter() - began, "grown": _own_memory() - before, "keep_one_in": last.keep_one_in,
        "drawn": sum(share.drawn for share in last.shares), "distinct": sum(share.distinct for share in last.shares),
        "shared": last.shared, "unseen": last.unseen,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.4)
    parser.add_argument("--only-hundred-million", action="store_true")
    asked = parser.parse_args()
    if not asked.only_hundred_million:
        loaders(asked.rounds, asked.seconds)
    with tempfile.TemporaryDirectory() as folder:
        hundred_million(folder)


def loaders(rounds: int, seconds: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        rank = Rank(folder, ProbeSettings(frozenset({"samples"})))
        rank.trace = TraceWriter(folder, 0, 1, 0, 0)
        own = {size: alone(rank, data, size) * 1e6 for size, data in ((32, Images()), (256, Images()))}
        timings = throughput(rank, rounds, seconds)
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


if __name__ == "__main__":
    main()
