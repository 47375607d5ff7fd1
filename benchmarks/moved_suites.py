"""Suites that are not ours, moved to `@pytest.mark.distdoctor`: how many tests pass, and what a test takes by the mark and by the
suite's own harness, in one run.

python benchmarks/moved_suites.py accelerate|torch [-k EXPRESSION] [--own N]
python benchmarks/moved_suites.py DEEPSPEED/tests unit/runtime/zero/test_zero_context.py ... [--own N]

`--own N`: so many of the tests that passed (the quickest, the slowest and between) run by the suite's own harness too. The edits
of each suite are its moved_*.py.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
OURS = {"accelerate": "moved_accelerate.py", "torch": "moved_torch.py"}
OUTCOME = re.compile(r"^(PASSED|FAILED|SKIPPED|XFAIL|ERROR)\b(?: \[(\d+)\])? (\S+)", re.M)
SECONDS = re.compile(r"^([\d.]+)s call +(\S+)$", re.M)
MOVED = {"test_moved": "test_spawned", "TestMoved": "AsTorchRunsThem"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite")
    parser.add_argument("files", nargs="*")
    parser.add_argument("-k", default="")
    parser.add_argument("--own", type=int, default=3)
    parser.add_argument("--limit", type=float, default=240.0, help="seconds for each side")
    asked = parser.parse_args()
    own = asked.suite in OURS
    folder, nodes = (HERE, [OURS[asked.suite]]) if own else (Path(asked.suite), asked.files)
    selection = ["-k", asked.k] if asked.k else []
    print("load", os.getloadavg()[0])
    output = run(folder, [*nodes, *selection], "mark", asked.limit)
    counts = Counter[str]()
    for outcome, number, _ in OUTCOME.findall(output):
        counts[outcome.lower()] += int(number or 1)
    print("by the mark:", dict(counts))
    print("\n".join(line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))))
    passed = {node for outcome, _, node in OUTCOME.findall(output) if outcome == "PASSED"}
    took = {node: float(seconds) for seconds, node in SECONDS.findall(output) if node in passed}
    print(f"{len(took)} calls took {sum(took.values()):.1f} s by the mark")
    compare(folder, took, asked.own, asked.limit)


def compare(folder: Path, by_mark: dict[str, float], number: int, limit: float) -> None:
    ordered = sorted(by_mark, key=by_mark.__getitem__)
    chosen = [ordered[i * (len(ordered) - 1) // max(1, number - 1)] for i in range(min(number, len(ordered)))]
    by_own = {}
    for node in chosen:
        their = node
        for ours, theirs in MOVED.items():
            their = their.replace(ours, theirs)
        found = SECONDS.findall(run(folder, [their], "own", limit))
        if found:
            by_own[node] = float(found[0][0])
            print(f"{node}: mark {by_mark[node]:.2f} s, own harness {by_own[node]:.2f} s")
    mark, own = sum(by_mark[node] for node in by_own), sum(by_own.values())
    if mark:
        print(
            f"{len(by_own)} tests: mark {mark:.1f} s, own harness {own:.1f} s, {own / mark:.1f} times; load",
            os.getloadavg()[0],
        )


def run(folder: Path, words: list[str], harness: str, limit: float) -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:asyncio"]
    command += ["--color=no", "-rA", "--tb=line", "--durations=0", "-vv", "-p", "no:logging"]
    command += [] if folder == HERE else ["-p", "moved_deepspeed"]
    paths = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "HARNESS": harness, "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2", "PYTHONPATH": paths}
    done = subprocess.run(
        [*command, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=limit, check=False
    )
    return re.sub(r"\x1b\[[\d;]*m", "", done.stdout)


if __name__ == "__main__":
    main()
