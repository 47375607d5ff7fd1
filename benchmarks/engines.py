"""Flight recorder dumps read by each engine, on 1 and on 2 workers: the same recording bit for bit, and how long it took.

    python benchmarks/engines.py [--ranks 1024 10240] [--entries 200] [--workers 1 2] [--engines local futures ray dask mpi]

The dumps are those of `flight_dumps.py`, 16 healthy ones written and the other ranks hard links to them. `local` is what
`examine` does without an engine, `futures` a ProcessPoolExecutor, the others real clusters on this machine (`distdoctor[ray]`,
`[dask]`, `[mpi]` and an mpiexec); an engine that is not installed is left out. Seconds are those of reading and all checks, the
start of the cluster apart; what is sent to it, and its first imports, are in them. Every recording is told by its digest.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from flight_dumps import write_dumps

from distdoctor import plugins
from distdoctor.diagnosis.examination import examine
from distdoctor.launch.engines import engine
from distdoctor.recording.flight.reading import read_dumps
from distdoctor.recording.recording import Recording

MODULES = {"ray": "ray", "dask": "distributed", "mpi": "mpi4py"}


@contextlib.contextmanager
def workers_of(name: str, workers: int) -> Iterator[Executor | None]:
    """So many processes that read."""
    with contextlib.ExitStack() as stack:
        if name == "local":
            yield None
        elif name == "futures":
            yield stack.enter_context(ProcessPoolExecutor(workers))
        else:
            _start(name, workers, stack)
            yield stack.enter_context(engine(name))


def _start(name: str, workers: int, stack: contextlib.ExitStack) -> None:
    """A cluster of so many workers, where its own programs find it."""
    if name == "ray":
        import ray

        ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        stack.callback(ray.shutdown)
    elif name == "dask":
        import distributed

        make: Any = distributed.LocalCluster
        cluster = stack.enter_context(make(n_workers=workers, threads_per_worker=1, dashboard_address=None))
        os.environ["DASK_SCHEDULER_ADDRESS"] = cluster.scheduler_address


def digest_of(recording: Recording) -> str:
    """Of everything in a recording that was made of dumps, to the last bit."""
    found = hashlib.sha256(repr((recording.job, recording.troubles)).encode())
    for rank, log in recording.ranks.items():
        found.update(repr((rank, log.texts, sorted(log.lost.items()), sorted(log.environment.items()))).encode())
        found.update(np.asarray(log.calls).tobytes() + log.groups.tobytes())
    return found.hexdigest()[:16]


def measure(name: str, workers: int, folder: Path) -> None:
    """Print one line: seconds, CPU seconds of this process, digest of the recording, first finding."""
    checks = list(plugins.load().checks.values())
    with workers_of(name, workers) as executor:
        since, cpu = time.perf_counter(), time.process_time()
        recording = read_dumps(folder.iterdir(), executor)
        read = time.perf_counter() - since
        first = examine(recording, checks).findings[0]
        seconds, cpu = time.perf_counter() - since, time.process_time() - cpu
    print(f"{read:8.1f} {seconds:8.1f} {cpu:8.1f}  {digest_of(recording)}  {first.code} {first.ranks}", flush=True)


def command(name: str, workers: int, folder: str) -> list[str] | None:
    """How this script is started for one line; None where the engine is not installed."""
    here = [str(Path(__file__)), "--one", name, str(workers), folder]
    if name in MODULES and importlib.util.find_spec(MODULES[name]) is None:
        return None
    if name != "mpi":
        return [sys.executable, *here]
    mpiexec = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}:/usr/bin")
    if mpiexec is None:
        return None
    allowed = ["--allow-run-as-root", "--oversubscribe"] if "Open" in _version(mpiexec) else []
    return [mpiexec, *allowed, "-n", str(workers + 1), sys.executable, "-m", "mpi4py.futures", *here]


def _version(mpiexec: str) -> str:
    return subprocess.run([mpiexec, "--version"], capture_output=True, text=True, check=False).stdout


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1024, 10240])
    parser.add_argument("--entries", type=int, default=200)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--engines", nargs="+", default=["local", "futures", "ray", "dask", "mpi"])
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.one:
        name, workers, folder = asked.one
        measure(name, int(workers), Path(folder))
        return
    print(f"{'ranks':>6} {'engine':8} workers   read s    all s  parent CPU s  digest            first finding")
    for ranks in asked.ranks:
        with tempfile.TemporaryDirectory() as made:
            write_dumps(Path(made), ranks, asked.entries, ranks // 3, 16)
            for name in asked.engines:
                for workers in [0] if name == "local" else asked.workers:
                    _line(ranks, name, workers, made)


def _line(ranks: int, name: str, workers: int, folder: str) -> None:
    words = command(name, workers, folder)
    if words is None:
        print(f"{ranks:6} {name:8} is not installed")
        return
    done = subprocess.run(words, capture_output=True, text=True, timeout=1800, check=False)
    said = [line for line in done.stdout.splitlines() if " DD" in line] or done.stderr.strip().splitlines()[-1:]
    print(f"{ranks:6} {name:8} {workers:7} {said[-1] if said else f'exit {done.returncode}'}", flush=True)


if __name__ == "__main__":
    main()
