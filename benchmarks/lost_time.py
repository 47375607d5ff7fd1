"""How often lost time is put down to the right cause and rank: delays of 20-40 % of a step on a random rank, and healthy jobs.

    python benchmarks/lost_time.py [--trials 20] [--healthy 5] [--seed 0]

Each trial is a real job of two ranks behind DistributedDataParallel, 80 steps of about 40 ms, in which one rank takes longer in
its DataLoader, in forward or in backward. Right means: DD504 for data and DD123 for the others, that rank alone, and of DD123
the right words for what it does meanwhile.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import Finding
from distdoctor.plugins import load
from distdoctor.recording.recording import Job, Recording
from distdoctor.recording.trace.run_folder import read_run

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from jobs import run_ranks, values

STEPS, FORWARD, BACKWARD = 80, 0.018, 0.018
CODES = {"data": "DD504", "forward": "DD123", "backward": "DD123"}
WORDS = {"forward": "computes before backward", "backward": "computes in backward"}


class Samples(Dataset[tuple[Tensor, int]]):
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return 1 << 16

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if self.seconds and index % 4 == 0:  # once for each batch
            time.sleep(self.seconds)
        return torch.full((64,), index % 7 / 7), index % 10


class Working(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, forward: float, backward: float) -> Tensor:
        ctx.seconds = backward
        time.sleep(forward)
        return inputs.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        time.sleep(ctx.seconds)
        return grads[0], None, None


class Net(nn.Module):
    def __init__(self, forward: float, backward: float) -> None:
        super().__init__()
        self.body, self.head, self.seconds = nn.Linear(64, 64), nn.Linear(64, 10), (forward, backward)

    def forward(self, inputs: Tensor) -> Tensor:
        scores: Tensor = self.head(Working.apply(self.body(inputs).relu(), *self.seconds))
        return scores


def train(rank: int, world_size: int, who: int, where: str, delay: float) -> None:
    torch.manual_seed(0)
    more = {where: delay} if rank == who else {}
    model = DistributedDataParallel(Net(FORWARD + more.get("forward", 0), BACKWARD + more.get("backward", 0)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, (inputs, targets) in enumerate(DataLoader(Samples(more.get("data", 0.0)), batch_size=4)):
        if step == STEPS:
            break
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()


def findings(*about: Any) -> list[Finding]:
    with tempfile.TemporaryDirectory() as folder:
        values(run_ranks(train, 2, *about, folder=folder, timeout=120))
        recording = Recording(Job(world_size=2), read_run(Path(folder)).ranks)
        checks = [check for code, check in load().checks.items() if code.startswith("DD5") or code == "DD123"]
        return list(examine(recording, checks).findings)


def is_right(found: list[Finding], who: int, where: str) -> bool:
    if [(one.code, one.ranks) for one in found] != [(CODES[where], (who,))]:
        return False
    return where == "data" or found[0].evidence["meanwhile"] == WORDS[where]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--healthy", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    right, errors = 0, []
    for _ in range(options.trials):
        who, where, share = rng.randrange(2), rng.choice(list(CODES)), rng.uniform(0.2, 0.4)
        delay = share * (FORWARD + BACKWARD + 0.004)
        found = findings(who, where, delay)
        if is_right(found, who, where):
            right += 1
            lost = found[0].evidence.get("lost_seconds_per_step") or found[0].evidence["waiting_ms"][who] / 1e3  # type: ignore[index]
            errors.append(abs(float(lost) - delay) / delay)  # type: ignore[arg-type]
        else:
            print(f"rank {who} {where} {delay * 1e3:.1f} ms: {[(one.code, one.ranks, one.title) for one in found]}")
    print(f"right cause and rank: {right} of {options.trials}")
    if errors:
        print(f"lost time against the injected delay: median error {statistics.median(errors):.1%}")
    silent = sum(not findings(0, "data", 0.0) for _ in range(options.healthy))
    print(f"healthy jobs that stay silent: {silent} of {options.healthy}")


if __name__ == "__main__":
    main()
