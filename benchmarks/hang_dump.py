"""How long does it take to look at a hung job? distdoctor hang-dump against one `py-spy dump` after the other.

`python benchmarks/hang_dump.py [--ranks 8] [--workers 2]` starts plain processes that look like ranks to every launcher's rules
(RANK, WORLD_SIZE, LOCAL_RANK in the environment), each with DataLoader workers. They do not train: the looking is measured.
The pause of a rank is measured by the rank itself, as the longest gap in a loop that reads the clock, against a quiet time.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil

RANK = """
import os, sys, time
from torch.utils.data import DataLoader, Dataset
class Data(Dataset):
    def __len__(self): return 64
    def __getitem__(self, index):
        time.sleep(600)
workers = int(sys.argv[1])
def main():
    if workers:
        batches = iter(DataLoader(Data(), num_workers=workers, multiprocessing_context="fork"))
    print("ready", flush=True)
    if os.environ["RANK"] == "0":
        for phase in ("quiet", "looked"):
            longest, last = 0.0, time.perf_counter()
            while not os.path.exists(f"{sys.argv[2]}.{phase}"):
                now = time.perf_counter()
                longest, last = max(longest, now - last), now
                time.sleep(0.0005)
            print(f"{longest:.6f}", flush=True)
    time.sleep(600)
main()
"""
PY_SPY = str(Path(sys.executable).parent / "py-spy")


def start(ranks: int, workers: int, flag: Path) -> list[subprocess.Popen[str]]:
    """The ranks, all of them ready."""
    shared = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    found = []
    for rank in range(ranks):
        environment = {**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"}
        words = [sys.executable, "-c", RANK, str(workers), str(flag)]
        found.append(subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True))
    for process in found:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    return found


def timed(words: list[str]) -> tuple[float, subprocess.CompletedProcess[str]]:
    since = time.perf_counter()
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    return time.perf_counter() - since, done


def one_after_the_other(pids: list[int], mode: str) -> float:
    return sum(timed([PY_SPY, "dump", "--json", "--locals", *mode.split(), "--pid", str(pid)])[0] for pid in pids)


def gap(process: subprocess.Popen[str], flag: Path, phase: str, *, after: float = 0.0) -> float:
    """The longest gap that rank 0 saw until now, in seconds."""
    time.sleep(after)
    flag.with_name(f"{flag.name}.{phase}").touch()
    assert process.stdout is not None
    return float(process.stdout.readline())


def end(processes: list[subprocess.Popen[str]]) -> None:
    for process in processes:
        with suppress(psutil.Error):
            parent = psutil.Process(process.pid)
            for one in [*parent.children(recursive=True), parent]:
                with suppress(psutil.Error):
                    one.kill()
        process.wait(30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    flag = Path(tempfile.mkdtemp()) / "phase"
    processes = start(args.ranks, args.workers, flag)
    try:
        quiet = gap(processes[0], flag, "quiet", after=3.0)
        hang_dump = [
            sys.executable,
            "-m",
            "distdoctor",
            "hang-dump",
            "--patience",
            "0.5",
            "--json",
            "--pid",
            str(processes[1].pid),
        ]
        rows = []
        for _ in range(args.repeats):
            seconds, done = timed(hang_dump)
            document = json.loads(done.stdout)
            seen = [one["pid"] for one in document["stacks"] if one["threads"]]
            rows.append(seconds)
        loop = [one_after_the_other(seen, "--nonblocking") for _ in range(args.repeats)]
        locking = [one_after_the_other(seen, "") for _ in range(args.repeats)]
        pause = gap(processes[0], flag, "looked")
        states = {psutil.Process(process.pid).status() for process in processes}
    finally:
        end(processes)
        shutil.rmtree(flag.parent)
    print(
        f"{args.ranks} ranks, {len(seen) - args.ranks} loader workers, {os.cpu_count()} cores, best of {args.repeats}"
    )
    print(f"distdoctor hang-dump (2 samples, verdict)   {min(rows):6.2f} s")
    print(
        f"py-spy dump --nonblocking, one by one       {min(loop):6.2f} s  (1 sample, no verdict; twice for 2 samples)"
    )
    print(f"py-spy dump, one by one                     {min(locking):6.2f} s  (pauses each process)")
    print(
        f"longest gap in rank 0: {pause * 1000:.1f} ms while it was looked at, {quiet * 1000:.1f} ms before; states: {states}"
    )


if __name__ == "__main__":
    main()
