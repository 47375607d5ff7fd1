"""A bug in the probe, one function after the other: is the training the same to the last bit, and does the recording say so?

    python benchmarks/probe_bugs.py [--ranks 2] [--only MODULE,MODULE] [--from-call N]

Every function of distdoctor.probe that a small training calls raises from its Nth call on, in a training of its own: see
tests/jobs/probe_bugs.py. What it computes has to be what it computes without a probe, and nothing may be raised into it. With two
ranks it is another training, for what ranks do together and for looks in depth; what both call is tried with one rank.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from jobs import run_ranks
from jobs.probe_bugs import told, train

LIMIT_SECONDS = 60


def outcome(function: str | None, from_call: int, ranks: int = 1) -> tuple[str, dict[str, int], str]:
    """(digests of the training, calls of the probe's functions, what went wrong)."""
    with tempfile.TemporaryDirectory(prefix="probe-bugs-") as folder:
        found = run_ranks(train, ranks, folder, function, from_call, join=False, timeout=LIMIT_SECONDS)
        wrong = [one.error or f"it ended with {one.exit_code}" for one in found if one.error or one.exit_code]
        wrong += ["it did not end" for one in found if one.timed_out]
        wrong += ["the recording says nothing of it"] if function and not wrong and not told(folder) else []
        values = [one.value or ("", {}) for one in found]
        calls = {name: max(each.get(name, 0) for _, each in values) for _, each in values for name in each}
        return " ".join(digest for digest, _ in values), calls, wrong[0] if wrong else ""


def bugs(only: list[str], from_call: int, ranks: int) -> Iterator[tuple[str, str]]:
    """(function, what went wrong), "" for nothing."""
    plain, _, trouble = outcome(None, 1, ranks)
    probed, calls, _ = outcome("", 1, ranks)
    assert plain.strip(), trouble
    assert plain == probed
    if ranks > 1:
        _, alone, _ = outcome("", 1)
        calls = {name: count for name, count in calls.items() if name not in alone}
    for function, count in sorted(calls.items()):
        if count >= from_call and (not only or any(word in function for word in only)):
            digest, _, wrong = outcome(function, from_call, ranks)
            yield function, wrong or ("" if digest == plain else "another result")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--from-call", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=1)
    asked = parser.parse_args()
    tried = silent = wrong = 0
    only = [word for word in asked.only.split(",") if word]
    for function, trouble in bugs(only, asked.from_call, asked.ranks):
        tried += 1
        silent += trouble.startswith("the recording")
        wrong += bool(trouble) and not trouble.startswith("the recording")
        if trouble:
            print(f"{function}: {trouble}", flush=True)
    print(f"{tried} functions: {wrong} reach the training, {silent} are not told")


if __name__ == "__main__":
    main()
