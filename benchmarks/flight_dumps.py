"""Diagnosis of torch flight recorder dumps: ours against torch's own analyser (fr_trace), on the same files in one run.

    python benchmarks/flight_dumps.py [--ranks 64 256 1024] [--entries 2000] [--against 256] [--distinct 16]

The dumps are written as NCCL's recorder writes them (pickle, stacks of 24 frames, four lines of one training loop); one rank
leaves out a collective near the end. Reported: seconds, CPU seconds and peak memory of all processes that read, and the share
that plain unpickling in one process has of the CPU seconds. With `--distinct N` only N healthy dumps are written, and the other
ranks are hard links to them, so that 10,240 ranks fit on a small disk. fr_trace runs up to `--against` ranks; what it says, or
how it ends, is printed as it is.
"""

from __future__ import annotations

import argparse
import math
import pickle
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

OPS = [("nccl:all_reduce", [[25600]], 41), ("nccl:all_reduce", [[1024]], 42), ("nccl:_all_gather_base", [[512]], 44),
       ("nccl:all_reduce_barrier", [[1]], 57)]  # fmt: skip
FRAMES = 24
OURS = """
import os, sys, time, resource
from pathlib import Path
from distdoctor import plugins
from distdoctor.diagnosis.examination import examine
from distdoctor.recording.open import read_any
checks = list(plugins.load().checks.values())
since, cpu = time.perf_counter(), time.process_time()
found = examine(read_any(Path(sys.argv[1])), checks).findings
seconds, cpu, children = time.perf_counter() - since, time.process_time() - cpu, resource.getrusage(resource.RUSAGE_CHILDREN)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss + children.ru_maxrss * len(os.sched_getaffinity(0))
print(seconds, cpu + children.ru_utime + children.ru_stime, peak / 1024,
      found[0].code, *found[0].ranks)
"""
THEIRS = "import torch.distributed.flight_recorder.fr_trace as t; t.main()"
UNPICKLE = """
import gc, pickle, sys, time
from pathlib import Path
gc.disable()
cpu = time.process_time()
for path in Path(sys.argv[1]).iterdir():
    with path.open("rb") as file:
        pickle.load(file)
print(time.process_time() - cpu)
"""


def write_dumps(folder: Path, ranks: int, entries: int, culprit: int, distinct: int) -> None:
    """One dump per rank; the culprit's collectives stop being the others' three calls before the end."""
    lines = {line: {"name": "step", "filename": "/job/train.py", "line": line} for _, _, line in OPS}
    below = [
        {"name": f"call_{n}", "filename": f"/site-packages/torch/nn/modules/m{n}.py", "line": n} for n in range(FRAMES)
    ]
    stacks = {line: [below[0], lines[line], *below[1:]] for line in lines}
    members = str(list(range(ranks)))
    written: list[Path] = []
    for rank in range(ranks):
        path = folder / f"dump_rank_{rank}"
        if rank != culprit and len(written) >= distinct > 0:
            path.hardlink_to(written[rank % distinct])
            continue
        content = dump(rank, entries, stacks, members, skips=rank == culprit)
        path.write_bytes(pickle.dumps(content, protocol=2))
        if rank != culprit:
            written.append(path)


def dump(
    rank: int, entries: int, stacks: dict[int, list[dict[str, Any]]], members: str, *, skips: bool
) -> dict[str, Any]:
    """What the file of one rank holds."""
    rows: list[dict[str, Any]] = []
    for number in range(entries):
        skipped = skips and number >= entries - 3
        name, sizes, line = OPS[(number + skipped) % len(OPS)]
        done = number < entries - 3
        rows.append({
            "record_id": number, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": number + 1,
            "p2p_seq_id": 0, "op_id": number + 1, "profiling_name": name, "time_created_ns": 10**18 + number * 10**6 + rank,
            "duration_ms": 0.5, "input_sizes": sizes, "input_dtypes": ["Float"], "output_sizes": sizes,
            "output_dtypes": ["Float"], "state": "completed" if done else "scheduled", "frames": list(stacks[line]),
            "time_discovered_started_ns": 10**18 + number * 10**6 if done else None, "retired": done, "timeout_ms": 600000,
            "time_discovered_completed_ns": 10**18 + number * 10**6 + 5 * 10**5 if done else None, "is_p2p": False,
            "thread_id": "140000", "thread_name": "pt_main_thread",
        })  # fmt: skip
    return {
        "version": "2.10", "comm_lib_version": "2.27.3", "entries": rows,
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": members}},
        "pg_status": {"0": {"last_enqueued_collective": entries, "last_started_collective": entries - 3,
                            "last_completed_collective": entries - 3}},
    }  # fmt: skip


def child(code: str, *words: str) -> tuple[str, float]:
    """Standard output of `python -c code words`, and the seconds it took with its start."""
    since = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=3600, check=False
    )
    said = (done.stdout.strip() or done.stderr.strip()).splitlines() or ["nothing"]
    return said[-1] if code is not THEIRS else f"exit {done.returncode}: {said[-1][:90]}", time.perf_counter() - since


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--entries", type=int, default=2000)
    parser.add_argument("--against", type=int, default=256, help="the largest world that fr_trace is given")
    parser.add_argument("--distinct", type=int, default=0, help="write only so many healthy dumps (0: every rank's)")
    options = parser.parse_args()
    print(f"{'ranks':>6} {'s':>8} {'CPU s':>8} {'ms/rank':>8} {'MiB':>7} {'unpickling':>11}  verdict")
    points = []
    for ranks in options.ranks:
        with tempfile.TemporaryDirectory() as folder:
            write_dumps(Path(folder), ranks, options.entries, ranks // 3, options.distinct)
            plain = float(child(UNPICKLE, folder)[0])
            seconds, cpu, peak, *verdict = child(OURS, folder)[0].split()
            points.append((ranks, float(cpu)))
            print(f"{ranks:>6} {float(seconds):>8.2f} {float(cpu):>8.2f} {1000 * float(cpu) / ranks:>8.1f} {float(peak):>7.0f} "
                  f"{plain / float(cpu):>10.0%}  {' '.join(verdict)}", flush=True)  # fmt: skip
            if ranks <= options.against:
                said, took = child(THEIRS, "-p", "dump_rank_", folder)
                print(f"       fr_trace {took:.1f} s, ratio {took / float(seconds):.1f}; {said}", flush=True)
    if len(points) > 1:
        (first, start), (last, end) = points[0], points[-1]
        print(f"growth: CPU seconds ~ ranks^{math.log(end / start) / math.log(last / first):.2f}")


if __name__ == "__main__":
    main()
