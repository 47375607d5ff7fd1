"""Sequence tagger whose snapshots are written by a helper thread while training goes on."""
import argparse
import json
import pathlib
import queue
import tempfile
import threading
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


class Writer(threading.Thread):
    """Writes each tensor to its own file, with a pause between files to spare the shared disk."""

    def __init__(self, root, pause):
        super().__init__(daemon=True)
        self.root, self.pause = pathlib.Path(root), pause
        self.jobs = queue.Queue()

    def submit(self, step, state):
        self.jobs.put((step, state))

    def run(self):
        while True:
            job = self.jobs.get()
            if job is None:
                return
            step, state = job
            folder = self.root / f"step_{step:04d}.tmp"
            folder.mkdir(parents=True)
            for name, value in state.items():
                torch.save(value, folder / f"{name}.pt")
                time.sleep(self.pause)
            (folder / "index.json").write_text(json.dumps({"step": step, "names": list(state)}))
            folder.rename(self.root / f"step_{step:04d}")

    def close(self):
        self.jobs.put(None)
        self.join()


def load(folder):
    index = json.loads((folder / "index.json").read_text())
    return index["step"], {n: torch.load(folder / f"{n}.pt", weights_only=True) for n in index["names"]}


class Tagger(nn.Module):
    def __init__(self, vocab=30, dim=24, tags=5):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.conv = nn.Conv1d(dim, dim, 3, padding=1)
        self.out = nn.Linear(dim, tags)

    def forward(self, x):
        h = self.embed(x).transpose(1, 2)
        return self.out(F.relu(self.conv(h)).transpose(1, 2))


def snapshot(model):
    return {k: v.detach() for k, v in model.state_dict().items()}


def make_batch(gen, n=16, length=10):
    x = torch.randint(0, 30, (n, length), generator=gen)
    return x, (x + x.roll(1, 1)) % 5


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--every", type=int, default=15)
    p.add_argument("--pause", type=float, default=0.05)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(4)
    model = DDP(Tagger())
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(40 + rank)
    root = pathlib.Path(tempfile.mkdtemp(prefix="marl_")) if rank == 0 else None
    writer = Writer(root, args.pause) if rank == 0 else None
    if writer:
        writer.start()
    for step in range(1, args.steps + 1):
        x, y = make_batch(gen)
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if writer and step % args.every == 0:
            writer.submit(step, snapshot(model.module))
            print(f"step {step} loss {loss.item():.4f}, snapshot queued", flush=True)
    if writer:
        writer.close()
        first = sorted(root.glob("step_*"))[0]
        step, state = load(first)
        probe = Tagger()
        probe.load_state_dict(state)
        x, y = make_batch(torch.Generator().manual_seed(9), 64)
        print(f"snapshot of step {step}: loss {F.cross_entropy(probe(x).flatten(0, 1), y.flatten()).item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
