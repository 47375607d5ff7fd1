"""All tables that show how solid the ground is, one after another: faults, damaged inputs, secrets, lint, a broken machine.

    python benchmarks/closing_tables.py [--inputs N] [--lint FOLDER]... [--only NAME,NAME]

Takes about 25 minutes on two cores, most of it for the faults (root). `--lint` are checkouts of the repositories in
lint_verdicts.md; without any, the table there is printed as it stands.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent
FUZZ = HERE.parent / "tests" / "fuzz" / "fuzz.py"
FAMILIES = ("log", "ras-text", "ras-json", "dumps", "clogs", "bundle", "checkpoint")
PLAIN = """
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(20):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
"""


def _run(*words: str | Path) -> int:
    sys.stdout.flush()
    return subprocess.call([sys.executable, *map(str, words)], env={**os.environ, "OMP_NUM_THREADS": "1"})


def faults(options: argparse.Namespace) -> None:
    print("| fault | torchrun | with distdoctor | same | what it says |\n|---|---|---|---|---|")
    _run(HERE / "faults.py")


def fuzz(options: argparse.Namespace) -> None:
    """So many inputs of each family; of run folders a twentieth, for they take longest."""
    print("| family | what came of it |\n|---|---|")
    for family in FAMILIES:
        _row(family, [FUZZ, "--family", family, "--inputs", str(options.inputs), "--seed", str(options.seed)])
    with tempfile.TemporaryDirectory(prefix="closing-") as folder:
        (Path(folder) / "job.py").write_text(PLAIN)
        command = [sys.executable, "-m", "distdoctor", "run", "--nproc", "2", "--run-dir", "run", "job.py"]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        _row(
            "run",
            [FUZZ, Path(folder) / "run", "--inputs", str(max(1, options.inputs // 20)), "--seed", str(options.seed)],
        )


def _row(family: str, words: list[str | Path]) -> None:
    done = subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True, check=False)
    *wrong, last = (done.stdout or done.stderr).strip().splitlines() or ["nothing"]
    print(f"| {family} | {last} |", flush=True)
    for line in wrong:
        print(f"    {line}", flush=True)


def canaries(options: argparse.Namespace) -> None:
    """Thirty secrets of one job, and in how many files, bundles and reports one of them is."""
    _run("-m", "pytest", "-q", "-p", "no:cacheprovider", HERE.parent / "tests" / "launch" / "test_secrets.py", "-rA")


def lint(options: argparse.Namespace) -> None:
    if options.lint:
        _run(HERE / "lint_table.py", *options.lint)
    else:
        print((HERE / "lint_verdicts.md").read_text("utf-8").partition("## Each finding")[0])


def preflight(options: argparse.Namespace) -> None:
    _run(HERE / "preflight_broken.py")


TABLES: dict[str, tuple[str, Callable[[argparse.Namespace], None]]] = {
    "faults": ("Faults", faults),
    "fuzz": ("Damaged inputs", fuzz),
    "canaries": ("Secrets", canaries),
    "lint": ("Lint on public repositories", lint),
    "preflight": ("A broken machine, before the job", preflight),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=1000, help="damaged inputs of each family")
    parser.add_argument("--seed", type=int, default=5_000_000)
    parser.add_argument("--lint", action="append", default=[], metavar="FOLDER")
    parser.add_argument("--only", default=",".join(TABLES))
    options = parser.parse_args()
    unknown = sorted({*options.only.split(",")} - TABLES.keys())
    if unknown:
        parser.error(f"no table is called {', '.join(unknown)}: there are {', '.join(TABLES)}")
    for name in options.only.split(","):
        title, table = TABLES[name]
        print(f"\n## {title}\n")
        table(options)


if __name__ == "__main__":
    main()
