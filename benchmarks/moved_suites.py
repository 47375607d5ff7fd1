"""Suites that are not ours, moved to `@pytest.mark.distdoctor`: how many tests pass, and what a test takes by the mark and by the
suite's own harness, in one run.

python benchmarks/moved_suites.py accelerate|torch [-k EXPRESSION] [--own N] [--rounds R]
python benchmarks/moved_suites.py DEEPSPEED/tests unit/runtime/zero/test_zero_context.py ... [--own N]

`--own N`: so many of the tests that passed (the quickest, the slowest and between) run again, R times by the mark and R times by
the suite's own harness, in turn, each time all of them in one session of pytest; the figures are medians. The edits of each suite
are its moved_*.py.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from statistics import median

HERE = Path(__file__).parent
OURS = {"accelerate": "moved_accelerate.py", "torch": "moved_torch.py"}
OUTCOME = re.compile(r"^(PASSED|FAILED|SKIPPED|XFAIL|ERROR)\b(?: \[(\d+)\])? (\S+)", re.M)
SECONDS = re.compile(r"^([\d.]+)s call +(\S+)$", re.M)
LAST_TEST = 240.0  # seconds for the test that runs when a session's time is over
MOVED = {"test_moved": "test_spawned", "TestMoved": "AsTorchRunsThem"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite")
    parser.add_argument("files", nargs="*")
    parser.add_argument("-k", default="")
    parser.add_argument("--own", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=240.0, help="seconds for each session of pytest")
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
    print("\n".join(line for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))))
    passed = {node for outcome, _, node in OUTCOME.findall(output) if outcome == "PASSED"}
    took = seconds_of(output, passed)
    print(f"{len(took)} calls took {sum(took.values()):.1f} s by the mark")
    ordered = sorted(took, key=took.__getitem__)
    count = min(asked.own, len(ordered))
    compare(folder, [ordered[i * (len(ordered) - 1) // max(1, count - 1)] for i in range(count)], asked)


def seconds_of(output: str, among: Collection[str]) -> dict[str, float]:
    return {node: float(seconds) for seconds, node in SECONDS.findall(output) if node in among}


def compare(folder: Path, chosen: list[str], asked: argparse.Namespace) -> None:
    theirs = {node: in_their_words(node) for node in chosen}
    by_mark: dict[str, list[float]] = {node: [] for node in chosen}
    by_own: dict[str, list[float]] = {node: [] for node in chosen}
    for number in range(asked.rounds):
        mark = seconds_of(run(folder, chosen, "mark", asked.limit), chosen)
        own = seconds_of(run(folder, [*theirs.values()], "own", asked.limit), theirs.values())
        for node in chosen:
            by_mark[node] += [mark[node]] if node in mark else []
            by_own[node] += [own[theirs[node]]] if theirs[node] in own else []
        print(f"round {number + 1}: mark {sum(mark.values()):.1f} s, own harness {sum(own.values()):.1f} s", flush=True)
    both = {node: (median(by_mark[node]), median(by_own[node])) for node in chosen if by_mark[node] and by_own[node]}
    for node, (mark_s, own_s) in both.items():
        print(f"{node}: mark {mark_s:.2f} s, own harness {own_s:.2f} s, {own_s / mark_s:.1f} times as long")
    if both:
        mark_s, own_s = (sum(pair[side] for pair in both.values()) for side in (0, 1))
        ratio = median(own_s / mark_s for mark_s, own_s in both.values())
        print(
            f"{len(both)} tests, medians of {asked.rounds} rounds: mark {mark_s:.1f} s, own harness {own_s:.1f} s, "
            f"{own_s / mark_s:.1f} times as long (median test: {ratio:.1f} times); load {os.getloadavg()[0]:.1f}"
        )


def in_their_words(node: str) -> str:
    for ours, theirs in MOVED.items():
        node = node.replace(ours, theirs)
    return node


def run(folder: Path, words: list[str], harness: str, limit: float) -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:asyncio"]
    command += ["--color=no", "-rA", "--tb=line", "--durations=0", "-vv", "-p", "no:logging"]
    command += [f"--session-timeout={limit}"]  # no further test is begun, and those that are over are counted
    # a test is named alike everywhere where the folder is pytest's root
    command += ["-c", os.devnull, f"--rootdir={HERE}"] if folder == HERE else ["-p", "moved_deepspeed"]
    paths = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "HARNESS": harness, "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2", "PYTHONPATH": paths}
    done = subprocess.run(
        [*command, *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=limit + LAST_TEST,
        check=False,
    )
    return re.sub(r"\x1b\[[\d;]*m", "", done.stdout)


if __name__ == "__main__":
    main()
