"""The parts of `on_gpu.sh`, each of which needs one GPU: `python benchmarks/on_gpu.py PART [--device cuda|cpu]`.

With `--device cpu` the same jobs run over gloo, which shows that a part works, and measures nothing of CUDA. A part prints what
it found and ends with 1 where that is not what it should be.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distdoctor.recording.trace.run_folder import read_run

LIMIT_SECONDS = 100
MOST_COST = 0.01  # of a step: what the probe may take
MiB = 1 << 20
JOB = """
import json, os, sys, time
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

mode, on_gpu = sys.argv[1], sys.argv[2] == "cuda"
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
if on_gpu:
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if on_gpu else "gloo")
torch.manual_seed(0)
width = 2048 if on_gpu else 64
layers = [layer for _ in range(8) for layer in (nn.Linear(width, width), nn.ReLU())]
model = DistributedDataParallel(nn.Sequential(*layers).to(device))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
x = torch.randn(256, width, device=device)

def step():
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss

def wait():
    if on_gpu:
        torch.cuda.synchronize()

def many(steps):
    wait()
    began = time.perf_counter()
    for _ in range(steps):
        loss = step()
    wait()
    return loss, (time.perf_counter() - began) / steps

many(30)
found = {}
if mode == "train":
    loss, seconds = many(300)
    found = {"milliseconds": seconds * 1e3, "loss": loss.item().hex()}
elif mode == "profile":
    from torch.profiler import ProfilerActivity, profile
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]) as seen:
        for _ in range(40):  # the sampled steps of the probe among them
            step()
    waits = ("Synchronize", "Memcpy DtoH", "StreamWait", "EventQuery")
    found = {one.key: one.count for one in seen.key_averages() if any(word in one.key for word in waits)}
elif mode == "memory" and on_gpu:
    many(20)
    found = {"peak": torch.cuda.max_memory_allocated(), "capacity": torch.cuda.get_device_properties(device).total_memory}
elif mode == "out-of-memory":
    torch.empty(1 << 46, dtype=torch.uint8, device=device)  # 64 TiB
elif mode == "stuck":
    if on_gpu:
        torch.cuda._sleep(1 << 50)  # cycles: a kernel that ends in days, and all behind it waits
    else:
        time.sleep(600)
    dist.all_reduce(torch.ones(4, device=device))
    wait()
elif mode == "dump" and on_gpu:
    with open("nccl_trace_rank_0", "wb") as file:
        file.write(torch._C._distributed_c10d._dump_nccl_trace())
json.dump(found, open("found.json", "w"))
dist.destroy_process_group()
"""


@dataclass(frozen=True)
class Ended:
    """How a job ended, and what its rank found out."""

    code: int
    found: dict[str, Any]
    folder: Path
    words: str

    @property
    def findings(self) -> list[dict[str, Any]]:
        """Of the diagnosis that `distdoctor run` stored."""
        path = self.folder / "run/diagnosis.json"
        return json.loads(path.read_text())["findings"] if path.exists() else []

    def show(self) -> None:
        for one in self.findings:
            print(f"{one['code']} {one['severity']} {one['confidence']} {one['ranks']}: {one['title']}")


def job(mode: str, device: str, folder: Path, *options: str, plain: bool = False, **variables: str) -> Ended:
    """One rank, launched by torchrun (`plain`) or by `distdoctor run` with these options."""
    folder.mkdir(parents=True)
    (folder / "job.py").write_text(JOB)
    ours = ["-m", "distdoctor", "run", "--nproc", "1", "--run-dir", "run", *options]
    theirs = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
    done = subprocess.run(
        [sys.executable, *(theirs if plain else ours), "job.py", mode, device],
        cwd=folder, env={**os.environ, **variables}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=LIMIT_SECONDS, check=False,
    )  # fmt: skip
    path = folder / "found.json"
    return Ended(done.returncode, json.loads(path.read_text()) if path.exists() else {}, folder, done.stdout[-3000:])


def step_cost(device: str, work: Path) -> bool:
    """What a step takes with and without the probe, in turns; the loss is the same to the last bit."""
    rounds = 4
    plain = [job("train", device, work / f"plain{n}", plain=True) for n in range(rounds)]
    ours = [job("train", device, work / f"ours{n}") for n in range(rounds)]
    times = [statistics.median(one.found["milliseconds"] for one in side) for side in (plain, ours)]
    losses = {one.found["loss"] for one in (*plain, *ours)}
    more = times[1] / times[0] - 1
    print(
        f"a step: {times[0]:.3f} ms by torchrun, {times[1]:.3f} ms recorded ({more:+.2%}); {len(losses)} different losses"
    )
    return len(losses) == 1 and (device == "cpu" or times[1] <= times[0] * (1 + MOST_COST) + 0.05)


def no_synchronisation(device: str, work: Path) -> bool:
    """The profiler sees no more waits for the device with the probe than without."""
    plain, ours = job("profile", device, work / "plain", plain=True), job("profile", device, work / "ours")
    names = sorted({*plain.found, *ours.found})
    for name in names:
        print(f"{name}: {plain.found.get(name, 0)} by torchrun, {ours.found.get(name, 0)} recorded, in 40 steps")
    print("" if names else "no wait for the device in either")
    forbidden = [name for name in names if "Synchronize" in name]
    return ours.code == 0 and all(ours.found.get(name, 0) <= plain.found.get(name, 0) for name in forbidden)


def memory_tables(device: str, work: Path) -> bool:
    """The trace has the allocator's numbers as the rank saw them itself."""
    ended = job("memory", device, work / "job")
    rows = read_run(work / "job/run").ranks[0].rows("memory")
    last = rows[-1]
    names = ("allocated", "reserved", "peak", "capacity", "parameters", "gradients", "state")
    print(", ".join(f"{name} {int(last[name]) / MiB:.1f} MiB" for name in names), f"in {len(rows)} records")
    if device == "cpu":
        return ended.code == 0
    print(f"the rank itself: peak {ended.found['peak'] / MiB:.1f} MiB")
    near = abs(int(last["peak"]) - ended.found["peak"]) <= MiB
    ordered = last["capacity"] > last["reserved"] >= last["peak"] >= last["allocated"] > 0
    return bool(near and ordered and last["capacity"] == ended.found["capacity"])


def out_of_memory(device: str, work: Path) -> bool:
    """A rank that asks for 64 TiB is named with the line that did."""
    ended = job("out-of-memory", device, work / "job")
    ended.show()
    [line] = [number for number, text in enumerate(JOB.splitlines(), 1) if "# 64 TiB" in text]
    return any(one["code"] == "DD408" and (one["place"] or {}).get("line") == line for one in ended.findings)


def stuck_in_kernel(device: str, work: Path) -> bool:
    """A kernel that does not end: the stall is found, and the job ended in time."""
    ended = job("stuck", device, work / "job", "--hang-after", "15", "--on-hang", "abort")
    ended.show()
    return ended.code != 0 and any(one["severity"] == "error" for one in ended.findings)


def nccl_dumps(device: str, work: Path) -> bool:
    """A dump that torch makes here is read, whatever is found in it."""
    if device == "cpu":
        print("gloo has no dump of NCCL's")
        return True
    sizes = {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"}
    ended = job("dump", device, work / "job", plain=True, **sizes)
    folder = work / "dumps"
    folder.mkdir()
    (ended.folder / "nccl_trace_rank_0").rename(folder / "nccl_trace_rank_0")
    command = [sys.executable, "-m", "distdoctor", "examine", str(folder), "--output-format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)
    print(f"exit {done.returncode}, {(folder / 'nccl_trace_rank_0').stat().st_size} bytes", done.stderr[-500:])
    print([(one["code"], one["title"]) for one in json.loads(done.stdout)["findings"]])
    return done.returncode in (0, 1, 3)


def prediction(device: str, work: Path) -> bool:
    """What `advise --try` predicts, beside what the allocator held."""
    memory = "64GiB"
    options = ["--strategy", "single", "--nproc", "1", "--model", "gpt", "--device", device]
    command = [
        sys.executable,
        "-m",
        "distdoctor",
        "advise",
        "--gpus",
        f"1x{memory}",
        "--try",
        "checkpoint-activations",
        *options,
    ]
    done = subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)
    print(done.stdout[-2500:], done.stderr[-1500:])
    return done.returncode == 0


PARTS: dict[str, Callable[[str, Path], bool]] = {
    "step-cost": step_cost,
    "no-synchronisation": no_synchronisation,
    "memory-tables": memory_tables,
    "out-of-memory": out_of_memory,
    "stuck-in-kernel": stuck_in_kernel,
    "nccl-dumps": nccl_dumps,
    "prediction": prediction,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="distdoctor-gpu-") as work:
        return int(not PARTS[options.part](options.device, Path(work)))


if __name__ == "__main__":
    sys.exit(main())
