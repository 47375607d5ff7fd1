"""What looking at gradients and parameters costs, as a share of a training step.

    python benchmarks/digest_cost.py [--steps 150] [--models resnet18,gpt,mlp] [--rounds 3]

Two ranks train behind DistributedDataParallel. Every hook of the stream is timed from inside, in CPU time of the thread that
trains: its time divided by that of all steps is what the step pays, whatever else the machine does. `look` is one look at every
gradient and parameter, the comparisons are what others do at the same point: SHA-1 of every parameter (Megatron-LM's way) and an
all_gather of all gradients (wall time: it waits). Models take turns; the figures are medians over the rounds.
The first 0.2 s of looking, which are free in every job, are left out.
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

from distdoctor.recording.trace.probe_settings import ProbeSettings

SCRIPT = """
import hashlib, json, sys, time
import torch, torch.distributed as dist, torchvision
from torch import nn
from distdoctor.probe import start
from distdoctor.probe.gradients import stream as gradients

spent = {"hooks": 0.0}
def timed(function):
    def call(*arguments):
        began = time.thread_time()
        try:
            return function(*arguments)
        finally:
            spent["hooks"] += time.thread_time() - began
    return call

class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(4096, 256)
        layer = nn.TransformerEncoderLayer(256, 8, 1024, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(256, 4096)
    def forward(self, x):
        return self.head(self.layers(self.tokens(x))).mean(1)

MAKE = {
    "resnet18": (torchvision.models.resnet18, lambda: torch.randn(8, 3, 96, 96), 1000),
    "gpt": (GPT, lambda: torch.randint(0, 4096, (4, 64)), 4096),
    "mlp": (lambda: nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)), lambda: torch.randn(256, 64), 10),
}
name, steps, deep = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "deep"
torch.set_num_threads(1)
dist.init_process_group("gloo")
stepping = sys.modules["torch.optim.optimizer"]
stepping._global_optimizer_pre_hooks.clear()  # the stream that came by itself
stepping._global_optimizer_post_hooks.clear()
stream = gradients.GradientsStream(start._rank, start._rank.trace, deep, 1)
stream.before, stream.after = timed(stream.before), timed(stream.after)
stream.backward_begins = timed(stream.backward_begins)
stream.install()
make, inputs, classes = MAKE[name]
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(make())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
x, y = inputs(), torch.randint(0, classes, (len(inputs()),))
def step():
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
for _ in range(3):
    step()
stream._tracked[optimizer].spent_in_all = 1.0  # the looks of the first 0.2 s are free: what follows is measured
for _ in range(5):
    step()
spent["hooks"] = 0.0
began = time.thread_time()
for _ in range(steps):
    step()
took = time.thread_time() - began
tracked = stream._tracked[optimizer]
def once(function, rounds=5, clock=time.thread_time):
    seconds = []
    for _ in range(rounds):
        began = clock(); function(); seconds.append(clock() - began)
    return sorted(seconds)[rounds // 2]
parameters = list(model.parameters())
sha = once(lambda: [hashlib.sha1(p.detach().numpy()).hexdigest() for p in parameters])
flat = torch.cat([p.grad.reshape(-1) for p in parameters])
out = torch.empty(2 * flat.numel())
gather = once(lambda: dist.all_gather_into_tensor(out, flat), clock=time.perf_counter)
def looking():
    tracked.looking = True
    stream._look_before(optimizer, tracked)
    stream._look_after(optimizer, tracked)
look = once(looking, 5)
if dist.get_rank() == 0:
    print("RESULT", json.dumps({"step": took / steps, "share": spent["hooks"] / took, "interval": tracked.interval, "look": look,
        "sha1": sha, "all_gather": gather, "tensors": len(parameters), "MB": flat.nbytes / 1e6}))
dist.destroy_process_group()
"""


def measure(name: str, steps: int, mode: str) -> dict[str, float]:
    """What rank 0 of a job of two ranks has measured."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "job.py"
        script.write_text(SCRIPT)
        run = Path(folder) / "run"
        run.mkdir()
        # The stream is switched on by the script itself, so that it can time it; its sections are there all the same.
        env = {
            **os.environ,
            **ProbeSettings(frozenset({"gradients"})).hand_over(run),
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(script)]
        done = subprocess.run(
            [*command, name, str(steps), mode], check=False, capture_output=True, text=True, timeout=600, env=env
        )
        found = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
        if not found:
            raise SystemExit(done.stderr[-3000:])
        result: dict[str, float] = json.loads(found[0].partition(" ")[2])
        return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--models", default="resnet18,gpt,mlp")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(
        f"{'model':10}{'MB':>7}{'tensors':>9}{'step ms':>9}{'look ms':>9}{'sha1 ms':>9}{'all_gather ms':>15}  share of the step"
    )
    names = options.models.split(",")
    default: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    deep: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for _ in range(options.rounds):
        for name in names:
            default[name].append(measure(name, options.steps, "default"))
            deep[name].append(measure(name, max(10, options.steps // 5), "deep"))
    for name in names:
        usual, every = (lambda key, name=name: median(default[name], key)), median(deep[name], "share")
        print(
            f"{name:10}{usual('MB'):7.1f}{usual('tensors'):9.0f}{usual('step') * 1e3:9.1f}{usual('look') * 1e3:9.2f}"
            f"{usual('sha1') * 1e3:9.1f}{usual('all_gather') * 1e3:15.1f}  default {usual('share'):.2%} "
            f"(one look in {usual('interval'):.0f} steps), every step {every:.1%}"
        )


def median(results: list[dict[str, float]], key: str) -> float:
    return statistics.median(result[key] for result in results)


if __name__ == "__main__":
    main()
