"""How often torch aborts a small job while its interpreter shuts down (DD130), by what the script does before it ends.

    python benchmarks/exit_aborts.py [--runs 40] [--ranks 2]

Each run is five DDP steps on gloo under plain torchrun, one way of ending after the other. Prints runs that failed, by way.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

JOB = """\
import gc, sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
if sys.argv[1] == "model freed first":
    del model, optimizer
    gc.collect()
dist.destroy_process_group()
if sys.argv[1] == "a pause after it":
    time.sleep(0.1)
"""
WAYS = ("as in most scripts", "model freed first", "a pause after it")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args()
    failed: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "job.py"
        script.write_text(JOB)
        torchrun = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            str(options.ranks),
        ]
        for _ in range(options.runs):
            for way in WAYS:
                done = subprocess.run(
                    [*torchrun, str(script), way],
                    env={**os.environ, "OMP_NUM_THREADS": "1"},
                    capture_output=True,
                    text=True,
                    check=False,
                )
                failed[way] += done.returncode != 0
    for way in WAYS:
        print(f"{way:20} {failed[way]} of {options.runs} failed")


if __name__ == "__main__":
    main()
