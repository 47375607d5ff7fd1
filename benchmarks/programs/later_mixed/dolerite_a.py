"""Trains a regressor and writes snapshots from a background thread while training goes on."""
import argparse
import json
import os
import shutil
import tempfile
import threading
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class SnapshotWriter:
    """One file per tensor, written by a thread; at most one snapshot is under way."""

    def __init__(self, root):
        self.root = root
        self.thread = None

    def _write(self, state, folder):
        os.makedirs(folder, exist_ok=True)
        index = {}
        for i, (name, tensor) in enumerate(state.items()):
            torch.save(tensor, os.path.join(folder, f"{i:03d}.pt"))
            index[name] = f"{i:03d}.pt"
            time.sleep(0.02)  # object store latency
        with open(os.path.join(folder, "index.json"), "w") as f:
            json.dump(index, f)

    def save(self, model, opt, step):
        self.wait()
        state = {f"model.{k}": v for k, v in model.state_dict().items()}
        for i, slot in opt.state_dict()["state"].items():
            for key, value in slot.items():
                state[f"opt.{i}.{key}"] = value
        state = {k: v.detach().clone() for k, v in state.items()}
        folder = os.path.join(self.root, f"step{step:04d}")
        self.thread = threading.Thread(target=self._write, args=(state, folder))
        self.thread.start()

    def wait(self):
        if self.thread is not None:
            self.thread.join()
            self.thread = None


def build(dim):
    return nn.Sequential(nn.Linear(dim, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))


def make_batch(gen, size, dim):
    x = torch.randn(size, dim, generator=gen)
    return x, (x[:, :1] * x[:, 1:2]).tanh()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=90)
    ap.add_argument("--save-every", type=int, default=30)
    ap.add_argument("--dim", type=int, default=8)
    ap.add_argument("--keep", action="store_true")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(12)
    ddp = DDP(build(args.dim))
    opt = torch.optim.Adam(ddp.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(300 + rank)
    root = tempfile.mkdtemp(prefix="snap_") if rank == 0 else None
    writer = SnapshotWriter(root) if rank == 0 else None

    for step in range(1, args.steps + 1):
        x, y = make_batch(gen, 32, args.dim)
        loss = F.mse_loss(ddp(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.005)
        if writer is not None and step % args.save_every == 0:
            writer.save(ddp.module, opt, step)
            print(f"step {step} loss {loss.item():.4f}, snapshot started", flush=True)
    for _ in range(10):  # a few last steps at a lower rate
        for group in opt.param_groups:
            group["lr"] = 1e-3
        x, y = make_batch(gen, 32, args.dim)
        loss = F.mse_loss(ddp(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    if writer is not None:
        writer.wait()
        print("snapshots:", sorted(os.listdir(root)))
        if not args.keep:
            shutil.rmtree(root)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
