"""Make the golden recordings of the present layout: `python tests/recording/golden/make.py [FAMILY ...]`, once for each VERSION.

Real jobs of two ranks over gloo, recorded as `distdoctor run` does it, without the environment stream and the launcher's file:
neither says anything about the layout. They are written from a folder whose path is the same everywhere.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from distdoctor.recording.trace.layout import STREAMS, VERSION
from distdoctor.recording.trace.probe_settings import ProbeSettings

HERE = Path(__file__).parent
PLACE = Path(tempfile.gettempdir()) / "golden"
STREAMS_OF = {
    family: STREAMS - {"environment"} for family in ("hang", "replicas", "data", "memory", "speed", "checkpoint")
}
DEEP_OF = {"replicas": frozenset({"gradients"}), "memory": frozenset({"memory"})}

TRAIN = """
import os, sys, time
from datetime import timedelta
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

family = sys.argv[1]
dist.init_process_group("gloo", timeout=timedelta(seconds=15))
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
data = TensorDataset(torch.arange(96.0).reshape(24, 4), torch.arange(24) % 2)
sampler = None if family == "data" else DistributedSampler(data)
history = []


def step(x, y, number):
    if family == "speed" and rank == 1:
        time.sleep(0.05)
    loss = nn.functional.cross_entropy(model(x), y)
    if family == "memory":
        history.append(loss)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if family == "replicas" and rank == 1 and number == 2:
        with torch.no_grad():
            model.module.weight[0, 0] += 1.0
    if family == "hang" and rank == 1 and number == 3:
        dist.barrier()
    else:
        dist.all_reduce(loss.detach())


number = 0
for epoch in range(12 if family in ("memory", "speed") else 2):
    if sampler is not None:
        sampler.set_epoch(epoch)
    for x, y in DataLoader(data, 4, sampler=sampler, shuffle=sampler is None):
        step(x, y, number)
        number += 1
    if family == "checkpoint":
        torch.save(model.state_dict(), "model.pt")
dist.destroy_process_group()
"""


def record(family: str, folder: Path) -> list[Path]:
    """Run the job of a family; the traces and what lies beside them."""
    (PLACE / "train.py").write_text(TRAIN, "utf-8")
    settings = ProbeSettings(STREAMS_OF[family], DEEP_OF.get(family, frozenset()))
    env = {**os.environ, **settings.hand_over(folder), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py", family]
    done = subprocess.run(command, check=False, cwd=PLACE, env=env, timeout=300, capture_output=True, text=True)
    if done.returncode and family != "hang":
        raise SystemExit(done.stderr[-3000:])
    return sorted(path for pattern in ("*.trace", "*.state-*.json", "*.drawn") for path in folder.glob(pattern))


def pack(paths: list[Path], archive: Path) -> None:
    """One archive without owners and times."""
    with tarfile.open(archive, "w:xz", preset=9) as file:
        for path in paths:
            about = tarfile.TarInfo(path.name)
            content = path.read_bytes()
            about.size = len(content)
            file.addfile(about, io.BytesIO(content))


def main() -> None:
    out = HERE / str(VERSION)
    out.mkdir(exist_ok=True)
    for family in sys.argv[1:] or STREAMS_OF:
        shutil.rmtree(PLACE, ignore_errors=True)
        (PLACE / "run").mkdir(parents=True, mode=0o700)
        pack(record(family, PLACE / "run"), out / f"{family}.tar.xz")
        print(family, (out / f"{family}.tar.xz").stat().st_size, "bytes", flush=True)
    shutil.rmtree(PLACE, ignore_errors=True)


if __name__ == "__main__":
    main()
