"""What the stream of memory costs, as a ratio of medians of interleaved runs, and what DistributedDataParallel's buckets cost.

    python benchmarks/memory_cost.py [--rounds 3] [--steps 60] [--models resnet18,gpt,mlp] [--no-buckets]

Two ranks train behind DistributedDataParallel: without the stream, with it, and with deep looks, in turn. Wall times on a shared
machine drown in noise below some 5 %; so every hook of the stream is timed from inside as well (`share`, CPU time of the hooks by
the time of the steps). The second table is measured with deep looks: highest resident memory of each phase of a step, for each
way of keeping buckets.
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
from typing import Any

from distdoctor.recording.trace.probe_settings import ProbeSettings

SCRIPT = """
import json, os, statistics, sys, time
import torch, torch.distributed as dist, torchvision
from torch import nn

spent = [0.0, 0]
def timing():  # every callback of the stream, timed; before any of them is made
    from distdoctor.probe.memory import stream as memory
    plain = memory.MemoryStream.guarded
    def guarded(stream, function):
        inner = plain(stream, function)
        def call(*args, **kwargs):
            spent[1] += 1
            began = time.thread_time() if spent[1] == 1 else 0
            try:
                return inner(*args, **kwargs)
            finally:
                spent[1] -= 1
                if spent[1] == 0:
                    spent[0] += time.thread_time() - began
        return call
    memory.MemoryStream.guarded = guarded
    from distdoctor.probe import start
    stream = memory.MemoryStream(start._rank, start._rank.trace, "memory" in start._rank.settings.deep)
    stream.install()

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
    "wide": (lambda: nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(8)]), lambda: torch.randn(1024, 2048), 2048),
}
name, steps, timed = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "timed"
options = json.loads(sys.argv[4])
torch.set_num_threads(1)
dist.init_process_group("gloo")
make, inputs, classes = MAKE[name]
if timed:
    timing()
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(make(), **options)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
x, y = inputs(), torch.randint(0, classes, (len(inputs()),))
took = []
for _ in range(steps):
    began = time.perf_counter()
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    took.append(time.perf_counter() - began)
if dist.get_rank() == 0:
    print("RESULT", json.dumps({"step": statistics.median(took), "share": spent[0] / sum(took)}))
dist.destroy_process_group()
"""
VARIANTS = {
    "without": ("environment", ""),
    "default": ("memory,environment", ""),
    "deep": ("memory,environment", "memory"),
}
BUCKETS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "gradient_as_bucket_view": {"gradient_as_bucket_view": True},
    "lazy_bucket_allocation": {"lazy_bucket_allocation": True},
}


def run(folder: Path, name: str, steps: int, variant: str, *, timed: bool = False, **options: Any) -> tuple[Any, Path]:
    """What rank 0 has measured, and the run folder."""
    script = folder / "job.py"
    script.write_text(SCRIPT)
    record = Path(tempfile.mkdtemp(dir=folder))
    streams, deep = VARIANTS[variant]
    settings = ProbeSettings(frozenset(streams.split(",")), frozenset(deep.split(",")))
    env = {**os.environ, **settings.hand_over(record)}
    env |= {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "1048576", "MALLOC_TRIM_THRESHOLD_": "0"}
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(script), name, str(steps)]
    command += ["timed" if timed else "plain", json.dumps(options)]
    done = subprocess.run(command, check=False, env=env, capture_output=True, text=True, timeout=600)
    found = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    if not found:
        raise SystemExit(done.stderr[-3000:])
    return json.loads(found[0].partition(" ")[2]), record


def steps_table(folder: Path, models: list[str], rounds: int, steps: int) -> None:
    print(f"{'model':10}{'step ms':>9}  ratio default   ratio deep   share default   share deep")
    for name in models:
        times: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
        for _ in range(rounds):
            for variant, own in times.items():
                own.append(run(folder, name, steps, variant)[0]["step"])
        middle = {variant: statistics.median(own) for variant, own in times.items()}
        # Timed is a second stream beside the one that came by itself: its hooks can be wrapped before they are laid.
        shares = [run(folder, name, steps, variant, timed=True)[0]["share"] for variant in ("default", "deep")]
        print(
            f"{name:10}{middle['without'] * 1e3:9.2f}  x {middle['default'] / middle['without']:.3f}         "
            f"x {middle['deep'] / middle['without']:.3f}      {shares[0]:.3%}          {shares[1]:.2%}",
            flush=True,
        )


def buckets_table(folder: Path) -> None:
    from distdoctor.diagnosis.memory.memory import MIB, RankMemory
    from distdoctor.recording.trace.layout import Phase
    from distdoctor.recording.trace.run_folder import read_run

    print(
        f"\n{'buckets':26}{'forward':>9}{'backward':>10}{'optimizer':>11}{'peak MiB':>10}  (eight 2048 x 2048 layers, 128 MiB)"
    )
    first = 0.0
    for name, options in BUCKETS.items():
        _, record = run(folder, "wide", 4, "deep", **options)
        rank = RankMemory(read_run(record).ranks[0])
        peaks = [rank.phase_peaks().get(phase, 0) / MIB for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)]
        first = first or max(peaks)
        print(
            f"{name:26}{peaks[0]:9.0f}{peaks[1]:10.0f}{peaks[2]:11.0f}{max(peaks):10.0f}  {max(peaks) / first - 1:+.1%}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--models", default="resnet18,gpt,mlp")
    parser.add_argument("--no-buckets", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        steps_table(Path(name), [word for word in options.models.split(",") if word], options.rounds, options.steps)
        if not options.no_buckets:
            buckets_table(Path(name))


if __name__ == "__main__":
    main()
