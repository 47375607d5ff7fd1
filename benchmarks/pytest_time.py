"""How long a test in two ranks takes: `@pytest.mark.distdoctor` against a spawn per test, and torch's own gloo tests moved to the
mark against torch's own harness. Run: python benchmarks/pytest_time.py [REPEATS]

Both kinds run alternately in one pytest session; the first of each is left out (it loads what the others share).
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

SUITE = Path(__file__).with_name("pytest_time_suite.py")
TORCHS = Path(__file__).with_name("pytest_time_torch.py")
LINE = re.compile(r"^([\d.]+)s call +\S*::(\S+)$", re.M)
OF_TORCH = (
    "test_all_reduce_sum",
    "test_broadcast",
    "test_all_gather",
    "test_reduce_sum",
    "test_gather",
    "test_barrier",
)


def seconds(nodes: list[str], repeats: int) -> dict[str, float]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--durations=0", "-vv"]
    environment = {**os.environ, "REPEATS": str(repeats), "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2"}
    done = subprocess.run(
        [*command, "--timeout=300", *nodes], capture_output=True, text=True, env=environment, check=False
    )
    found = {name: float(took) for took, name in LINE.findall(done.stdout)}
    if done.returncode:
        sys.exit(done.stdout[-3000:] + done.stderr[-2000:])
    return found


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    interleaved = [
        f"{SUITE}::TestInterleaved::test_by_{kind}[{n}]" for n in range(repeats) for kind in ("mark", "spawn")
    ]
    print(os.getloadavg(), "load before")
    took = seconds(interleaved, repeats)
    medians = {}
    for kind in ("mark", "spawn"):
        values = [value for name, value in took.items() if f"by_{kind}" in name and not name.endswith("[0]")]
        medians[kind] = statistics.median(values)
        print(f"{kind:6} median {medians[kind]:.2f} s, {min(values):.2f} to {max(values):.2f} s, {len(values)} tests")
    print(f"spawn / mark: {medians['spawn'] / medians['mark']:.1f}")
    alternately = [
        node for name in OF_TORCH for node in (f"{TORCHS}::test_moved[{name}]", f"{TORCHS}::TestOfTorch::{name}")
    ]
    took = seconds(alternately, repeats)
    moved = sum(value for name, value in took.items() if "test_moved" in name)
    own = sum(value for name, value in took.items() if "test_moved" not in name)
    for name in OF_TORCH:
        mine = next(value for key, value in took.items() if key.endswith(f"test_moved[{name}]"))
        theirs = next(value for key, value in took.items() if key.endswith(name))
        print(f"{name:24} mark {mine:6.2f} s   torch's harness {theirs:6.2f} s")
    print(
        f"{len(OF_TORCH)} of torch's own gloo tests: mark {moved:.1f} s, its own harness {own:.1f} s, {own / moved:.1f} times"
    )
    print(os.getloadavg(), "load after")


if __name__ == "__main__":
    main()
