"""What watching a job that is busy costs the launcher: CPU seconds of its own threads, beside those of torch's agent.

    python benchmarks/watch_cost.py [--seconds 60]

Two ranks reduce four floats some 400 times a second. The kernel counts a thread's time in hundredths of a second, so the longer
it runs, the more exact the share.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

SCRIPT = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
t = torch.ones(4)
open(f"up-{dist.get_rank()}", "w").close()
while True:
    dist.all_reduce(t)
    time.sleep(0.002)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "train.py").write_text(SCRIPT)
        command = [sys.executable, "-m", "distdoctor", "run", "--nproc", "2", "train.py"]
        job = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            while not all(Path(folder, f"up-{rank}").exists() for rank in (0, 1)):
                time.sleep(0.1)
            time.sleep(2)  # the first look imports nothing any more after that
            before = cpu_seconds(job.pid)
            time.sleep(seconds)
            after = cpu_seconds(job.pid)
        finally:
            job.terminate()
            job.wait()
    agent, ours = (after[part] - before[part] for part in (0, 1))
    print(f"torch's agent {agent:.2f} s, distdoctor's threads {ours:.2f} s of CPU in {seconds:.0f} s")
    print(f"share of one core: {ours / seconds:.2%}; ratio to the agent {ours / max(agent, 0.01):.1f}")


def cpu_seconds(pid: int) -> tuple[float, float]:
    """Of the main thread, which is torch's agent, and of all others."""
    of = {thread.id: thread.user_time + thread.system_time for thread in psutil.Process(pid).threads()}
    return of[pid], sum(of.values()) - of[pid]


if __name__ == "__main__":
    main()
