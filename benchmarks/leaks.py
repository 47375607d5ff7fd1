"""How soon a leak is named, with its variable and line, and how right the bytes per step are.

    python benchmarks/leaks.py [--trials 4] [--seed 0]

Each trial is a real job of two ranks behind DistributedDataParallel, in which one rank or both keep something more in every step:
with the graph behind it (losses that are added up, outputs, a state that is carried on), or only bytes (a cache without bound).
Batch and width are drawn at random, so what a step keeps is known beforehand. A job has 12 steps; where the leak is not named by
then, the same job is run again with 24: bytes alone are only reported after 24, because a cache may have a bound. As many jobs
without a leak have to be silent.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
from collections import deque
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import Finding
from distdoctor.plugins import load
from distdoctor.recording.recording import Job, Recording
from distdoctor.recording.source_texts import with_sources
from distdoctor.recording.trace.run_folder import read_run

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from jobs import run_ranks, values

SHORT, LONG = 12, 24
INPUTS, OUTPUTS, STATE = 32, 10, 64
FLOAT = 4
MARKS = {"total": "# adds up", "outputs": "# is kept", "state": "# is carried on", "cache": "# is cached"}


class Net(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(INPUTS, width), nn.Linear(width, OUTPUTS)

    def forward(self, inputs: Tensor) -> Tensor:
        scores: Tensor = self.head(self.body(inputs).relu())
        return scores


def kept_bytes(kind: str, batch: int, width: int) -> int:
    """What one more step keeps: each tensor that the graph or the container holds, once."""
    floats = {
        "total": 0,  # backward has given back what the graph had saved; a few bytes of the loss itself remain
        "outputs": INPUTS + width + OUTPUTS,
        "state": INPUTS + STATE + STATE,
        "cache": width,
    }
    return floats[kind] * batch * FLOAT


def training(
    rank: int, world_size: int, kind: str, leaking: tuple[int, ...], batch: int, width: int, steps: int
) -> None:
    torch.manual_seed(rank)
    net = Net(width)
    model, cell = DistributedDataParallel(net), nn.Linear(INPUTS + STATE, STATE)
    optimizer = torch.optim.AdamW(model.parameters())
    leaks = rank in leaking
    total: Any = 0.0
    outputs: list[Tensor] = []
    cache: dict[int, Tensor] = {}
    recent: deque[Tensor] = deque(maxlen=4)
    state = torch.zeros(batch, STATE)
    for step in range(steps):
        inputs = torch.randn(batch, INPUTS)
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        recent.append(loss.detach())
        if kind == "total":
            total += loss if leaks else loss.item()  # adds up
        elif kind == "outputs" and leaks:
            outputs.append(net(inputs))  # is kept
        elif kind == "state":
            state = torch.tanh(cell(torch.cat([inputs, state], 1)))  # is carried on
            state = state if leaks else state.detach()
        elif kind == "cache":
            cache[step if leaks else 0] = torch.ones(batch, width)  # is cached


def recorded(kind: str, leaking: tuple[int, ...], batch: int, width: int, steps: int) -> Recording:
    with tempfile.TemporaryDirectory() as folder:
        about = (kind, leaking, batch, width, steps)
        values(run_ranks(training, 2, *about, folder=folder, timeout=120))
        return with_sources(Recording(Job(world_size=2), read_run(Path(folder)).ranks))


def named(recording: Recording) -> Finding | None:
    """The first finding about growing memory."""
    diagnosis = examine(recording, [load().checks["DD401"]])
    return diagnosis.findings[0] if diagnosis.findings else None


def is_right(finding: Finding, kind: str, leaking: tuple[int, ...]) -> bool:
    """Variable, ranks, and the line with the mark."""
    line = next(
        n for n, text in enumerate(Path(__file__).read_text("utf-8").splitlines(), 1) if text.endswith(MARKS[kind])
    )
    return finding.evidence["variable"] == kind and finding.ranks == leaking and finding.place.line == line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=4, help="of each kind")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    in_time = {True: 0, False: 0}
    counts = {True: 0, False: 0}
    right = wrong_alarms = 0
    apart: list[float] = []
    for kind in MARKS:
        for _ in range(options.trials):
            leaking = rng.choice([(0,), (1,), (0, 1)])
            batch = rng.choice([256, 512, 1024])
            width = rng.choice([1024, 2048, 4096])
            graph = kind != "cache"
            for steps in (SHORT, LONG):
                finding = named(recorded(kind, leaking, batch, width, steps))
                if finding is not None:
                    break
            counts[graph] += 1
            in_time[graph] += finding is not None and steps == SHORT
            good = finding is not None and is_right(finding, kind, leaking)
            right += good
            truth = kept_bytes(kind, batch, width)
            told = int(str(finding.evidence["bytes_per_step"])) if finding is not None else 0
            if truth and finding is not None:
                apart.append(abs(told / truth - 1))
            print(
                f"{kind:8} ranks {leaking!s:7} batch {batch:5} width {width:5}: "
                f"{'named' if good else 'missed' if finding is None else 'misnamed'} after {steps} steps, "
                f"{told} bytes a step, truly {truth}",
                flush=True,
            )
            wrong_alarms += named(recorded(kind, (), batch, width, LONG)) is not None
    jobs = sum(counts.values())
    print(f"named with variable, line and ranks: {right} of {jobs}")
    print(
        f"within {SHORT} steps: {in_time[True]} of {counts[True]} with a graph, {in_time[False]} of {counts[False]} of bytes"
    )
    if apart:
        close, middle = sum(one <= 0.10 for one in apart), statistics.median(apart)
        print(f"bytes per step: {close} of {len(apart)} within 10 %, median {middle:.2%} apart, worst {max(apart):.1%}")
    print(f"jobs without a leak: {wrong_alarms} of {jobs} reported")


if __name__ == "__main__":
    main()
