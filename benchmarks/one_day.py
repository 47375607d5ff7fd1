"""A day of steps through the real probe: do the rings wrap, does memory stay flat, is the first divergence still told at its end?

    python benchmarks/one_day.py [--steps 86400] [--plant weights|reduce-op|none]

A real job of two ranks behind DistributedDataParallel, launched by `distdoctor run` with every default stream, whose model is so
small that a step takes a few milliseconds; 86,400 steps of 1 s are a day, and only their number makes rings wrap. Early on one
thing goes wrong that ends nothing: rank 1 changes a weight, or reduces once by another operation. Resident memory of the ranks
and of the launcher is read on the way.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from distdoctor.recording.trace.run_folder import read_run, trace_paths

LIMIT_SECONDS = 3600
MOST_GROWTH = 8 << 20  # bytes, from a quarter of the way to the end: until then allocators settle
EXPECTED = {"weights": {"DD203"}, "reduce-op": {"DD105", "DD131"}}  # DD131: when the calls themselves are forgotten
JOB = """
import os, sys
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

steps, plant, at = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
x = torch.randn(4, 8)
for step in range(steps):
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == at and plant == "weights" and rank == 1:
        with torch.no_grad():
            model.module.weight[0, 0] += 1.0
    if step == at and plant == "reduce-op":
        dist.all_reduce(torch.ones(3), op=dist.ReduceOp.MAX if rank == 1 else dist.ReduceOp.SUM)
    if step % max(1, steps // 100) == 0:
        with open(f"progress-{rank}", "w") as file:
            file.write(f"{step} {os.getpid()}")
dist.destroy_process_group()
"""


def progress(folder: Path) -> dict[int, tuple[int, int]]:
    """rank -> (step, pid), as far as the ranks have said."""
    found = {}
    for path in folder.glob("progress-*"):
        words = path.read_text().split()
        if len(words) == 2:
            found[int(path.name.removeprefix("progress-"))] = (int(words[0]), int(words[1]))
    return found


def watched(launcher: psutil.Process, folder: Path, steps: int) -> dict[str, dict[int, int]]:
    """Resident bytes of each process by the hundredth of the way, until the launcher has ended."""
    held: dict[str, dict[int, int]] = {}
    until = time.monotonic() + LIMIT_SECONDS
    while launcher.status() != psutil.STATUS_ZOMBIE and time.monotonic() < until:
        ranks = progress(folder)
        done = min((step for step, _ in ranks.values()), default=0) * 100 // steps
        processes = {"launcher": launcher.pid, **{f"rank {rank}": pid for rank, (_, pid) in sorted(ranks.items())}}
        for name, pid in processes.items():
            try:
                held.setdefault(name, {})[done] = psutil.Process(pid).memory_info().rss
            except psutil.Error:
                continue  # it has just ended
        time.sleep(0.2)
    return held


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=86_400)
    parser.add_argument("--plant", choices=[*EXPECTED, "none"], default="weights")
    options = parser.parse_args()
    planted_at = options.steps // 20
    with tempfile.TemporaryDirectory(prefix="distdoctor-day-") as work:
        folder = Path(work)
        (folder / "job.py").write_text(JOB)
        words = [str(options.steps), options.plant, str(planted_at)]
        command = [sys.executable, "-m", "distdoctor", "run", "--nproc", "2", "--run-dir", "run", "job.py", *words]
        began = time.monotonic()
        with open(folder / "said", "wb") as said:
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            job = subprocess.Popen(command, cwd=folder, env=environment, stdout=said, stderr=said)
            held = watched(psutil.Process(job.pid), folder, options.steps)
        code, seconds = job.wait(), time.monotonic() - began
        print(f"{options.steps} steps in {seconds:.0f} s ({seconds / options.steps * 1e3:.2f} ms each), exit {code}")
        return int(not all([memory_is_flat(held), rings_wrapped(folder / "run"), told(folder / "run", options.plant)]))


def memory_is_flat(held: dict[str, dict[int, int]]) -> bool:
    """Print the memory of each process on the way, and whether it stays."""
    flat = True
    for name, by_hundredth in held.items():
        settled = {done: size for done, size in by_hundredth.items() if 25 <= done < 99}
        if not settled:
            continue
        first, last = settled[min(settled)], settled[max(settled)]
        shown = ", ".join(
            f"{done} % {by_hundredth[done] / 2**20:.1f}" for done in sorted(settled)[:: max(1, len(settled) // 5)]
        )
        print(f"{name}: MiB at {shown}; grown by {(last - first) / 2**20:+.1f} MiB")
        flat = flat and last - first <= MOST_GROWTH
    return flat


def rings_wrapped(run: Path) -> bool:
    """Print how much the rings have forgotten, and how large the files are."""
    recording = read_run(run)
    for rank, log in recording.ranks.items():
        lost = {name: count for name, count in log.lost.items() if count}
        size = trace_paths(run)[rank].stat().st_size
        print(f"rank {rank}: trace of {size / 2**20:.1f} MiB; forgotten records: {lost}")
    return all(any(log.lost.values()) for log in recording.ranks.values())


def told(run: Path, plant: str) -> bool:
    """Print what was found, and whether it is what was planted."""
    document = json.loads((run / "diagnosis.json").read_text())
    found = document["findings"]
    for one in found:
        print(f"{one['code']} {one['severity']} {one['confidence']} {one['ranks']}: {one['title']}")
    if plant == "none":
        return not [one for one in found if one["severity"] != "note"]
    return any(one["code"] in EXPECTED[plant] for one in found)


if __name__ == "__main__":
    sys.exit(main())
