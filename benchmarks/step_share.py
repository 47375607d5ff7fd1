"""How much of a resnet18 training is spent in the probe, by sampling where a rank is: no difference of two noisy times.

    python benchmarks/step_share.py [--seconds 60] [--rate 500] [--steps-first 8] [--size 224]

Two ranks of DistributedDataParallel over gloo (batch 8 of 224 x 224, SGD with momentum), all default streams. py-spy looks at
rank 0 so many times a second, after the first steps. A sample counts for the probe when the innermost Python frame of a running
thread is in it, so what torch's C++ does on the probe's behalf (reading a gradient) is in the share. In wrappers.py it is mostly
the wrapped function itself (backward), which is told apart. What machine load does to the step, it does to both.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from distdoctor.recording.trace.probe_settings import ProbeSettings

TRAINING = """
import os, pathlib, sys
import torch, torch.distributed as dist, torchvision
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torchvision.models.resnet18())
optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
inputs, targets = torch.randn(8, 3, int(sys.argv[3]), int(sys.argv[3])), torch.randint(0, 1000, (8,))
here, first, step = pathlib.Path(sys.argv[1]), int(sys.argv[2]), 0
stop = torch.zeros(1)
while not stop:
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(inputs), targets).backward()
    optimizer.step()
    step += 1
    if step == first and dist.get_rank() == 0:
        (here / "pid").write_text(str(os.getpid()))
    if step % 8 == 0:
        stop.fill_((here / "stop").exists())
        dist.broadcast(stop, 0)
if dist.get_rank() == 0:
    (here / "steps").write_text(str(step - first))
dist.destroy_process_group()
"""
FRAME = re.compile(r"distdoctor/probe/(\w+)")
WRAPPED = re.compile(r"<locals>\.wait ")  # of a work handle: the reduction itself


def stacks(folder: Path, seconds: int, rate: int, first: int, size: int) -> tuple[Counter[str], int]:
    """stack -> samples, of rank 0 of a training, and the steps that it took meanwhile."""
    script, record, samples = folder / "train.py", folder / "run", folder / "stacks.txt"
    script.write_text(TRAINING)
    record.mkdir()
    env = {**os.environ, "OMP_NUM_THREADS": "1", **ProbeSettings().hand_over(record)}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    job = subprocess.Popen([*command, str(folder), str(first), str(size)], env=env)
    try:
        pid = folder / "pid"
        while not pid.exists():
            assert job.poll() is None, "the training has ended"
            time.sleep(0.2)
        watching = ["record", "--pid", pid.read_text(), "--rate", str(rate), "--duration", str(seconds)]
        spy = Path(sys.executable).with_name("py-spy")
        subprocess.run(
            [spy, *watching, "--format", "raw", "--full-filenames", "--output", samples],
            check=True,
            capture_output=True,
        )
    finally:
        (folder / "stop").touch()
        job.wait(timeout=120)
    assert list(record.glob("*.trace")), "nothing was recorded"
    found: Counter[str] = Counter()
    for line in samples.read_text().splitlines():
        stack, _, count = line.rpartition(" ")
        found[stack] += int(count)
    return found, int((folder / "steps").read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--rate", type=int, default=500)
    parser.add_argument("--steps-first", type=int, default=8)
    parser.add_argument(
        "--size", type=int, default=224, help="pixels of an image's side; 96 is a step of a third of a second"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        found, steps = stacks(Path(name), options.seconds, options.rate, options.steps_first, options.size)
    total, places = found.total(), Counter[str]()
    for stack, count in found.items():
        innermost = stack.rpartition(";")[2]
        inside = FRAME.search(innermost)
        if inside:
            places["wrappers" if WRAPPED.search(innermost) else inside[1]] += count
    through = places.pop("wrappers", 0)
    spent = places.total()
    bound = 2 * math.sqrt(spent) / total
    print(
        f"{100 * spent / total:.2f} % of the time is the probe's (+- {100 * bound:.2f}): {total:,} samples, {steps} steps"
    )
    print(f"{100 * through / total:.2f} % is in wrapped functions that are C++, and in wrapping them")
    for place, count in places.most_common():
        print(f"  {place:14} {100 * count / total:.2f} %")


if __name__ == "__main__":
    main()
