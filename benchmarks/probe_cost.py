"""What the probe costs: the same job under plain torchrun, under the probe and under TORCH_DISTRIBUTED_DEBUG=DETAIL, in turn.

    python benchmarks/probe_cost.py [--rounds 5] [--no-resnet]

Prints ratios of medians over interleaved rounds. Wall times on a shared machine drown in noise below about 10 %, so the CPU time
per collective is measured too: that times the collectives of a step is what a step pays.
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

STEPS = {
    # About 10 ms of arithmetic and 50 all_reduces of 4 numbers.
    "50 collectives": """
import torch, torch.distributed as dist, time, json, sys, statistics
dist.init_process_group("gloo")
a, t = torch.randn(200, 200), torch.ones(4)
def step():
    for _ in range(10):
        a @ a
    for _ in range(50):
        dist.all_reduce(t)
STEPS, WARM = 120, 20
""",
    "resnet18": """
import torch, torch.distributed as dist, time, json, sys, statistics, torchvision
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torchvision.models.resnet18())
optimizer = torch.optim.SGD(model.parameters(), 0.01)
x, y = torch.randn(8, 3, 96, 96), torch.randint(0, 1000, (8,))
def step():
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
STEPS, WARM = 12, 3
""",
}
MEASURE = """
for _ in range(WARM):
    step()
wall, cpu = [], []
for _ in range(STEPS):
    w, c = time.perf_counter(), time.process_time()
    step()
    wall.append(time.perf_counter() - w); cpu.append(time.process_time() - c)
if dist.get_rank() == 0:
    print("RESULT", json.dumps([statistics.median(wall), statistics.median(cpu)]))
dist.barrier()
dist.destroy_process_group()
"""
# One process, no peer: nothing but the call itself. On one core, for gloo's thread on another one makes `wait` sleep or not, by
# chance, and a sleep costs more than the call.
ALONE = """
import os, torch, torch.distributed as dist, time
os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
t = torch.ones(4)
def block():
    began = time.process_time()
    for _ in range(500):
        dist.all_reduce(t)
    return (time.process_time() - began) / 500 * 1e6
block(); block()
print("RESULT", min(block() for _ in range(12)))
dist.destroy_process_group()
"""
IMPORT = """
import time, torch
from distdoctor.probe import seam
began = time.perf_counter()
seam.autoload()
print("RESULT", (time.perf_counter() - began) * 1e3)
"""


def environment(variant: str, folder: Path) -> dict[str, str]:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    if variant == "probe":
        env |= ProbeSettings().hand_over(folder)
    if variant == "DETAIL":
        env["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
    return env


def run(script: str, variant: str, ranks: int, folder: Path) -> str | None:
    """What the script printed after RESULT, None when the job failed."""
    path = folder / "job.py"
    path.write_text(script)
    record = Path(tempfile.mkdtemp(dir=folder))
    command = [sys.executable, str(path)]
    env = environment(variant, record)
    if ranks:
        command[1:1] = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
    else:
        env |= {"RANK": "0", "WORLD_SIZE": "1"}
    done = subprocess.run(command, check=False, env=env, capture_output=True, text=True, timeout=300)
    found = [line for line in done.stdout.splitlines() if "RESULT" in line]
    return found[0].partition("RESULT")[2] if done.returncode == 0 and found else None


def compare(name: str, script: str, variants: list[str], rounds: int, folder: Path) -> None:
    times: dict[str, list[tuple[float, float]]] = {variant: [] for variant in variants}
    failed: set[str] = set()
    for _ in range(rounds):
        for variant in variants:
            if variant not in failed:
                result = run(script, variant, 2, folder)
                if result is None:
                    failed.add(variant)
                else:
                    wall, cpu = json.loads(result)
                    times[variant].append((wall, cpu))
    base = [statistics.median(column) for column in zip(*times["plain"], strict=True)]
    for variant in variants:
        if variant in failed:
            print(f"{name:16} {variant:8} crashed")
            continue
        wall, cpu = (statistics.median(column) for column in zip(*times[variant], strict=True))
        ratios = f"x {wall / base[0]:.3f} wall, x {cpu / base[1]:.3f} CPU"
        print(f"{name:16} {variant:8} {wall * 1e3:8.2f} ms a step   {ratios}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-resnet", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plain, probed, imports = [], [], []
        for _ in range(options.rounds):
            plain.append(float(run(ALONE, "plain", 0, folder) or "nan"))
            probed.append(float(run(ALONE, "probe", 0, folder) or "nan"))
            imports.append(float(run(IMPORT, "plain", 0, folder) or "nan"))
        off, on = statistics.median(plain), statistics.median(probed)
        print(f"one all_reduce    plain {off:.1f} us CPU, probe {on:.1f} us: {on - off:.1f} us more with call site")
        print(f"inactive          {statistics.median(imports):.3f} ms per `import torch`")
        for name, script in STEPS.items():
            if name == "resnet18" and options.no_resnet:
                continue
            compare(name, script + MEASURE, ["plain", "probe", "DETAIL"], options.rounds, folder)
        traces = [path.stat().st_blocks * 512 for path in folder.rglob("*.trace")]
        print(f"disk              {max(traces) / 2**20:.2f} MiB per rank")


if __name__ == "__main__":
    main()
