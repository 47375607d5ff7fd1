"""How all checks, and the bundles of hosts, scale: one real rank's recording as that of 64 to 16,384 ranks, eight to a host.

    python benchmarks/many_ranks.py [--ranks 64 256 1024 4096] [--recorded FOLDER]

Without FOLDER a training of two ranks is run and recorded first (`distdoctor run --strategy ddp`). Reported for each number of
ranks: the CPU seconds of all checks over the whole job; the bytes of one host's bundle for each rank; the CPU seconds to unpack
all bundles and put them together, as the host that judges does; the exponent of growth from the smallest number to the largest.
"""

from __future__ import annotations

import argparse
import math
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from distdoctor import plugins
from distdoctor.diagnosis.examination import examine
from distdoctor.recording.bundle import pack, unpack
from distdoctor.recording.merge import merged
from distdoctor.recording.recording import Job, RankEnd, RankTrace, Recording
from distdoctor.recording.trace.layout import ranks_of, ranks_text
from distdoctor.recording.trace.process_key import ProcessKey
from distdoctor.recording.trace.run_folder import read_run

RANKS_OF_A_HOST = 8


@dataclass(frozen=True)
class Figures:
    """Of one number of ranks. Seconds are of the CPU."""

    ranks: int
    checks_seconds: float
    bytes_of_a_rank: float
    merge_seconds: float
    findings: tuple[str, ...]


def real_rank() -> RankTrace:
    """The recording of rank 0 of a healthy training over two ranks."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["run", "--strategy", "ddp", "--nproc", "2", "--run-dir", f"{folder}/run"]
        subprocess.run([sys.executable, "-m", "distdoctor", *command], cwd=folder, check=True, capture_output=True)
        return read_run(Path(folder) / "run").ranks[0]


def job_of(log: RankTrace, ranks: int, odd: Mapping[int, RankTrace] | None = None) -> Recording:
    """Every rank did what this one did, but for the `odd` ones; the groups that held both ranks hold all of these."""
    everybody = ranks_text(range(ranks))
    logs = {
        rank: replace(
            did,
            rank=rank,
            texts=tuple(everybody if text and ranks_of(text) == (0, 1) else text for text in did.texts),
            world_size=ranks,
            pid=1000 + rank,
            host=f"node{rank // RANKS_OF_A_HOST}",
            process=ProcessKey(1000 + rank, 1, f"node{rank // RANKS_OF_A_HOST}", f"{rank // RANKS_OF_A_HOST:032x}"),
        )
        for rank in range(ranks)
        for did in ((odd or {}).get(rank, log),)
    }
    ends = {rank: RankEnd(0, at_ns=1 << 62) for rank in range(ranks)}
    return Recording(Job(("train.py",), ranks, ends, exit_code=0), logs)


def host_of(job: Recording, number: int) -> Recording:
    """What one host saw of it."""
    here = range(number * RANKS_OF_A_HOST, (number + 1) * RANKS_OF_A_HOST)
    ends = {rank: end for rank, end in job.job.ends.items() if rank in here}
    return replace(job, job=replace(job.job, ends=ends), ranks={r: log for r, log in job.ranks.items() if r in here})


def measure(log: RankTrace, ranks: int) -> Figures:
    """The figures of one number of ranks."""
    checks = list(plugins.load().checks.values())
    job = job_of(log, ranks)
    began = time.process_time()
    diagnosis = examine(job, checks)
    examined = time.process_time() - began
    bundles = [pack(host_of(job, number)) for number in range(math.ceil(ranks / RANKS_OF_A_HOST))]
    began = time.process_time()
    merged([unpack(data, "host") for data in bundles])
    put_together = time.process_time() - began
    codes = tuple(finding.code for finding in diagnosis.findings)
    return Figures(ranks, examined, sum(map(len, bundles)) / ranks, put_together, codes)


def exponent(figures: Sequence[Figures]) -> float:
    """By which power of the number of ranks the checks grow, from the smallest to the largest."""
    small, *_, large = sorted(figures, key=lambda one: one.ranks)
    return math.log(large.checks_seconds / small.checks_seconds) / math.log(large.ranks / small.ranks)


def main(arguments: Sequence[str] | None = None) -> list[Figures]:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[64, 256, 1024, 4096])
    parser.add_argument("--recorded", type=Path, help="run folder of a job of two ranks")
    asked = parser.parse_args(arguments)
    log = read_run(asked.recorded).ranks[0] if asked.recorded else real_rank()
    found = []
    print(" ranks  checks s  bundle B/rank  merge s  findings")
    for ranks in asked.ranks:
        one = measure(log, ranks)
        found.append(one)
        codes = ", ".join(one.findings) or "-"
        print(
            f"{ranks:6}  {one.checks_seconds:8.2f}  {one.bytes_of_a_rank:13.0f}  {one.merge_seconds:7.2f}  {codes}",
            flush=True,
        )
    if len(found) > 1:
        print(f"exponent {exponent(found):.2f}")
    print(f"peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")
    return found


if __name__ == "__main__":
    main()
