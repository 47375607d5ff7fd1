"""A bug in the probe, one function after the other: is the training the same to the last bit, and does the recording say so?

    python benchmarks/probe_bugs.py [--only MODULE,MODULE] [--from-call N]

Every function of distdoctor.probe that a small training calls raises from its Nth call on, in a training of its own: see
tests/jobs/probe_bugs.py. What it computes has to be what it computes without a probe, and nothing may be raised into it.
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


def outcome(function: str | None, from_call: int) -> tuple[str, dict[str, int], str]:
    """(digest of the training, calls of the probe's functions, what went wrong)."""
    with tempfile.TemporaryDirectory(prefix="probe-bugs-") as folder:
        (rank,) = run_ranks(train, 1, folder, function, from_call, join=False, timeout=LIMIT_SECONDS)
        wrong = rank.error or (f"it ended with {rank.exit_code}" if rank.exit_code else "")
        silent = function and not told(folder)
        return *(rank.value or ("", {})), wrong or ("the recording says nothing of it" if silent else "")


def bugs(only: list[str], from_call: int) -> Iterator[tuple[str, str]]:
    """(function, what went wrong), "" for nothing."""
    plain, _, _ = outcome(None, 1)
    probed, calls, _ = outcome("", 1)
    assert plain
    assert plain == probed
    for function, count in sorted(calls.items()):
        if count >= from_call and (not only or any(word in function for word in only)):
            digest, _, wrong = outcome(function, from_call)
            yield function, wrong if digest in ("", plain) else "another result"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--from-call", type=int, default=1)
    asked = parser.parse_args()
    tried = silent = wrong = 0
    for function, trouble in bugs([word for word in asked.only.split(",") if word], asked.from_call):
        tried += 1
        silent += trouble.startswith("the recording")
        wrong += bool(trouble) and not trouble.startswith("the recording")
        if trouble:
            print(f"{function}: {trouble}", flush=True)
    print(f"{tried} functions: {wrong} reach the training, {silent} are not told")


if __name__ == "__main__":
    main()
