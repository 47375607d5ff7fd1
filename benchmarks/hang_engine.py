"""How the hang engine scales: one planted fault among 64 to 10,240 ranks with 2,000 collectives each, from recordings in memory.

    python benchmarks/hang_engine.py [--ranks 64 256 1024 4096 10240] [--calls 2000] [--kept 2000] [--repeat 3] [--shared]

Every rank has rows, texts and groups of its own, as the trace reader would hand them over; nothing is shared between ranks. With
`--shared` equal rows lie in memory once, and only the clocks of the ranks differ: 100,000 ranks then fit (22 GiB else).
Reported are the seconds, on the clock and of the CPU, and the additional peak memory of one verdict, the recording itself apart,
and the exponent of growth.
"""

from __future__ import annotations

import argparse
import gc
import math
import time
import tracemalloc

import numpy as np

from distdoctor.diagnosis.hang.kinds import IncidentKind
from distdoctor.diagnosis.hang.verdict import Verdict
from distdoctor.recording.recording import Job, RankTrace, Recording, no_rows
from distdoctor.recording.trace.layout import CALL, GROUP, digest_of, extend, ranks_text, signature_of
from distdoctor.recording.trace.layout import Op as OpKind
from distdoctor.recording.trace.reader import dtype_of
from distdoctor.testing.rank_trace import MILLISECOND, START_NS, WALL_NS, site_of

LINES = [("all_reduce", "[25600]", "train.py:41 step"), ("all_reduce", "[1024]", "train.py:41 step"),
         ("all_gather_into_tensor", "[512]", "train.py:44 step"), ("barrier", "", "train.py:57 save")]  # fmt: skip


def program(calls: int, skip: int = -1) -> np.ndarray:
    """The rows of one rank; the call at `skip` is left out."""
    texts = ["", "0", *dict.fromkeys(text for _, shape, site in LINES for text in (shape, site_of(site)) if text)]
    ids = {text: number for number, text in enumerate(texts)}
    rows = np.zeros(calls, dtype_of(CALL))
    prefix = site_prefix = 0
    for number in range(calls):
        op, shape, site = LINES[(number + (skip >= 0 and number >= skip)) % len(LINES)]
        kind = OpKind[op.upper()]
        dtype, reduction = (1, int(op == "all_reduce")) if shape else (0, 0)
        signature = signature_of(kind, dtype, shape, reduction, -1)
        prefix, site_prefix = extend(prefix, signature), extend(site_prefix, digest_of(site_of(site)))
        entered = START_NS + number * MILLISECOND
        rows[number] = (
            number + 1, entered, entered + MILLISECOND // 2, 0, number + 1, 4096, signature, prefix, site_prefix, number // 4,
            1, ids[shape], ids[site_of(site)], -1, 0, int(kind), 0, reduction, dtype, 0, number + 1,
        )  # fmt: skip
    return rows


def recording(ranks: int, calls: int, culprit: int, kept: int, *, shared: bool = False) -> Recording:
    """All ranks hang: the culprit left out the last call, so that everybody else waits for it.

    Each ring holds the last `kept` calls; the running digest of the group stands for the others.
    """
    texts = ["", "0", *dict.fromkeys(text for _, shape, site in LINES for text in (shape, site_of(site)) if text)]
    members = ranks_text(range(ranks))
    usual, odd = program(calls), program(calls, skip=calls - 1)
    usual["returned_ns"][-1] = odd["returned_ns"][-1] = 0
    logs = {}
    for rank in range(ranks):
        rows = (odd if rank == culprit else usual)[-kept:]
        if not shared:
            rows = rows.copy()
            rows["entered_ns"] += rank
        groups = np.zeros(1, dtype_of(GROUP))
        groups["seq"] = groups["end"] = 1
        groups["count"], groups["prefix"], groups["key"] = calls, rows["prefix"][-1], 1
        groups["members"] = len(texts)
        others = {name: no_rows(name) for name in ("steps", "events", "passes", "blocks")}
        logs[rank] = RankTrace(
            rank=rank,
            calls=rows,
            groups=groups,
            texts=(*("".join(text) for text in texts), str(members.encode(), "ascii")),
            host=f"node{rank // 8}",
            lost={"calls": calls - len(rows)},
            monotonic_to_wall_ns=WALL_NS - START_NS + (rank if shared else 0),
            **others,
        )
    return Recording(Job(world_size=ranks, running=True, read_at_ns=START_NS + 60 * 10**9), logs)


def measure(ranks: int, calls: int, repeat: int, kept: int, *, shared: bool = False) -> tuple[float, float, float]:
    """(seconds, CPU seconds, MiB) of a verdict: the best of `repeat`, and the peak of memory on top of the recording."""
    culprit = ranks // 3
    found = recording(ranks, calls, culprit, kept, shared=shared)
    best = best_cpu = math.inf
    for _ in range(repeat):
        gc.collect()
        since, cpu = time.perf_counter(), time.process_time()
        verdict = Verdict.of(found)
        best, best_cpu = min(best, time.perf_counter() - since), min(best_cpu, time.process_time() - cpu)
        assert [(e.kind, e.ranks) for e in verdict.incidents] == [(IncidentKind.DIVERGED, (culprit,))], (
            verdict.incidents
        )
        del verdict
    tracemalloc.start()
    Verdict.of(found)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return best, best_cpu, peak / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[64, 256, 1024, 4096, 10240])
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--kept", type=int, default=1 << 30, help="calls that each ring still holds (default: all)")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--shared", action="store_true", help="equal rows lie in memory once")
    options = parser.parse_args()
    print(f"{'ranks':>7} {'calls/rank':>11} {'seconds':>9} {'CPU s':>8} {'ms/rank':>9} {'MiB':>8}")
    points = []
    for ranks in options.ranks:
        seconds, cpu, mib = measure(ranks, options.calls, options.repeat, options.kept, shared=options.shared)
        points.append((ranks, cpu))
        words = f"{seconds:>9.3f} {cpu:>8.3f} {1000 * cpu / ranks:>9.3f} {mib:>8.1f}"
        print(f"{ranks:>7} {options.calls:>11} {words}", flush=True)
    if len(points) > 1:
        logs = np.log(np.array(points))
        slope = np.polyfit(logs[:, 0], logs[:, 1], 1)[0]
        print(f"growth: CPU seconds ~ ranks^{slope:.2f}")


if __name__ == "__main__":
    main()
