"""What the streams that are on by default cost a resnet18 training that saves: plain, all of them, and all but the checkpoints.

    python benchmarks/checkpoint_cost.py [--rounds 4]

Medians over interleaved rounds on two ranks, of CPU time (wall time on a shared machine drowns in noise): of a step (the mean
over 32 steps, so that the steps that are looked at count), of a save (weights and momentum, 89 MiB), and of everything before
the second step, where the start is digested once.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from distdoctor.recording.trace.layout import STREAMS
from distdoctor.recording.trace.probe_settings import ProbeSettings

VARIANTS: dict[str, frozenset[str] | None] = {
    "plain": None,
    "all but checkpoints": STREAMS - {"checkpoints"},
    "all": STREAMS,
}
TRAINING = """
import json, sys, time
import torch, torch.distributed as dist, torchvision
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torchvision.models.resnet18())
optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
inputs, targets = torch.randn(8, 3, 96, 96), torch.randint(0, 1000, (8,))
began, first, steps, saves = time.process_time(), 0.0, [], []
for number in range(40):
    step = time.process_time()
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(inputs), targets).backward()
    optimizer.step()
    steps.append(time.process_time() - step)
    first = first or time.process_time() - began
    if number % 8 == 7:
        save = time.process_time()
        if dist.get_rank() == 0:
            torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}, sys.argv[1])
        saves.append(time.process_time() - save)
        dist.barrier()
if dist.get_rank() == 0:
    print("RESULT", json.dumps([sum(steps[8:]) / 32, sorted(saves)[2], first]))
dist.destroy_process_group()
"""


def measured(streams: frozenset[str] | None) -> list[float]:
    """CPU seconds of rank 0: of a step, of a save, of the start."""
    with tempfile.TemporaryDirectory() as folder:
        script, record = Path(folder) / "train.py", Path(folder) / "run"
        script.write_text(TRAINING)
        record.mkdir()
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        if streams is not None:
            env |= ProbeSettings(streams).hand_over(record)
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
        done = subprocess.run(
            [*command, f"{folder}/all.pt"], check=False, capture_output=True, text=True, env=env, timeout=300
        )
        recorded = bool(list(record.glob("*.trace")))
    assert recorded is (streams is not None), "the probe was not where it should be"
    line = next((line for line in done.stdout.splitlines() if line.startswith("RESULT")), None)
    assert line is not None, done.stderr[-2000:]
    return list(json.loads(line.partition(" ")[2]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args()
    found: dict[str, list[list[float]]] = {name: [] for name in VARIANTS}
    for _ in range(options.rounds):
        for name, streams in VARIANTS.items():
            found[name].append(measured(streams))
    for number, what in enumerate(("step", "save", "start")):
        times = {name: 1e3 * statistics.median(row[number] for row in rows) for name, rows in found.items()}
        base = times["plain"]
        told = (f"{name} {time:.2f} ms ({100 * (time / base - 1):+.2f} %)" for name, time in times.items())
        print(f"{what:6} {', '.join(told)}")


if __name__ == "__main__":
    main()
