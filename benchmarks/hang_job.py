"""One of the hangs of tests/hang.py as a script of its own: `torchrun --nproc-per-node 2 hang_job.py NAME`."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

TESTS = Path(__file__).parent.parent / "tests"


def main() -> None:
    sys.path.insert(0, str(TESTS))
    from jobs import hang as hang_jobs

    dist.init_process_group("gloo", timeout=timedelta(minutes=10))
    torch.manual_seed(0)
    getattr(hang_jobs, sys.argv[1])(dist.get_rank())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
