"""What it costs to write down where the time of a step goes: the added work alone, without torch's own.

    python benchmarks/step_time_cost.py [--rounds 7]

Each of the three wrappers is laid around a function that does nothing, and compared with that function; the record is written
into a trace on disk as in a rank. The sum is what one step with one batch and one backward pass pays.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from distdoctor.recording.trace.probe_settings import ProbeSettings

COUNT = 20_000


def microseconds(function: Callable[[], object], rounds: int) -> float:
    """The least mean of so many rounds: what others take from us is not the function's."""
    took = []
    for _ in range(rounds):
        began = time.process_time()
        for _ in range(COUNT):
            function()
        took.append((time.process_time() - began) / COUNT * 1e6)
    return min(took)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds

    from distdoctor.probe import wrappers
    from distdoctor.probe.context import Rank
    from distdoctor.probe.progress.step_times import StepTimer
    from distdoctor.probe.writer import TraceWriter

    def nothing(*args: Any, **kwargs: Any) -> None:
        return None

    with tempfile.TemporaryDirectory() as folder:
        rank = Rank(folder, ProbeSettings(frozenset({"progress"})))
        rank.trace = TraceWriter(folder, 0, 1, 0, 0)
        times = StepTimer(rank, rank.trace.rings["times"])
        asks, has, begins, ends = times.listeners()
        torch_itself: Any = ModuleType("torch_itself")
        torch_itself.following = torch_itself.backward = nothing
        wrappers.listen(torch_itself, "following", before=asks, after=has)
        wrappers.listen(torch_itself, "backward", before=begins, after=ends)
        bare = microseconds(lambda: nothing(0), rounds)
        step = iter(range(1, 1 << 40))

        def optimizer() -> None:
            times.stepping = time.monotonic_ns()
            times.stepped()

        parts = {
            "next of a DataLoader": microseconds(lambda: torch_itself.following(0), rounds) - bare,
            "backward": microseconds(lambda: torch_itself.backward(0), rounds) - bare,
            "around the optimizer": microseconds(optimizer, rounds),
            "the record": microseconds(lambda: times.write(time.monotonic_ns(), next(step)), rounds),
        }
    for name, cost in parts.items():
        print(f"{name:24} {cost:5.2f} us")
    print(f"{'a step':24} {math.fsum(parts.values()):5.2f} us")


if __name__ == "__main__":
    main()
