"""How long the commands that train nothing take, against an interpreter that does nothing.

    python benchmarks/help_time.py [REPETITIONS]

Interleaved, so that a busy machine slows all of them alike. Seconds of wall clock, median and best.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "distdoctor --help": ["-m", "distdoctor", "--help"],
    "distdoctor explain DD101": ["-m", "distdoctor", "explain", "DD101"],
    "distdoctor rules": ["-m", "distdoctor", "rules"],
    "python -c 'import torch'": ["-c", "import torch"],
}


def measure(repetitions: int) -> dict[str, list[float]]:
    """Seconds per run of each command."""
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(repetitions):
        for name, words in COMMANDS.items():
            began = time.perf_counter()
            subprocess.run([sys.executable, *words], stdout=subprocess.DEVNULL, check=True, timeout=120)
            seconds[name].append(time.perf_counter() - began)
    return seconds


def main() -> None:
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    print(f"| command | median s | best s | ({repetitions} runs each)\n|---|---|---|")
    for name, seconds in measure(repetitions).items():
        print(f"| `{name}` | {statistics.median(seconds):.3f} | {min(seconds):.3f} |")


if __name__ == "__main__":
    main()
