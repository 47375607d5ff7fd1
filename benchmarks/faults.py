"""What a fault does to a job under plain torchrun and under `distdoctor run`: its end, its results, what is left, what is said.

    python benchmarks/faults.py [--only NAME,NAME]                (root: some faults mount a small file system)

Each fault of tests/launch/fault_list.py happens twice, in a job of two ranks behind DistributedDataParallel that writes down its
losses: once launched by `python -m torch.distributed.run`, once by `distdoctor run`. The two must end alike, with the same
losses, and leave the same processes; what the report says is shown beside it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "launch"))
from fault_list import FAULTS
from fault_stage import OURS, PLAIN, run


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="faults by their names, and all that begin with one of these")
    wanted = tuple(name for name in parser.parse_args().only.split(",") if name)
    different = 0
    for fault in FAULTS:
        if not wanted or fault.name.startswith(wanted):
            without, with_us = run(fault, PLAIN), run(fault, OURS)
            same = "yes" if with_us.like(without) else "NO"
            different += same == "NO"
            print(f"| {fault.name} | {without} | {with_us} | {same} | {with_us.said.replace('|', '/')} |", flush=True)
    return int(bool(different))


if __name__ == "__main__":
    sys.exit(main())
