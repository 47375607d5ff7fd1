"""Snapshots by a pool of threads: copied first, published by renaming, the newest two kept."""
import argparse
import concurrent.futures as cf
import os
import pathlib
import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


class Store:
    def __init__(self, root, keep=2):
        self.root, self.keep = pathlib.Path(root), keep
        self.pool = cf.ThreadPoolExecutor(max_workers=2)
        self.pending = []

    def put(self, step, payload):
        copied = {k: ({n: t.clone() for n, t in v.items()} if isinstance(v, dict) else v) for k, v in payload.items()}
        self.pending.append(self.pool.submit(self._write, step, copied))

    def _write(self, step, payload):
        fd, tmp = tempfile.mkstemp(dir=self.root)
        with os.fdopen(fd, "wb") as f:
            torch.save(payload, f)
            f.flush()
            os.fsync(f.fileno())
        os.replace(tmp, self.root / f"{step:06d}.pt")
        return step

    def settle(self):
        steps = sorted(f.result() for f in self.pending)
        self.pending = []
        for old in sorted(self.root.glob("*.pt"))[:-self.keep]:
            old.unlink()
        return steps

    def newest(self):
        return torch.load(sorted(self.root.glob("*.pt"))[-1], weights_only=True)


def net():
    return nn.Sequential(nn.Linear(11, 30), nn.ELU(), nn.Linear(30, 30), nn.ELU(), nn.Linear(30, 1))


def steps(model, opt, gen, first, last, store, every):
    for step in range(first, last + 1):
        x = torch.randn(20, 11, generator=gen)
        loss = F.huber_loss(model(x), (x[:, :1] * x[:, 1:2]).tanh())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if store and step % every == 0:
            store.put(step, {"step": step, "model": model.module.state_dict()})
    return loss.item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=40)
    p.add_argument("--every", type=int, default=4)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    box = [tempfile.mkdtemp(prefix="feldspar_") if rank == 0 else None]
    dist.broadcast_object_list(box, src=0)
    torch.manual_seed(30)
    model = DDP(net())
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    store = Store(box[0]) if rank == 0 else None
    gen = torch.Generator().manual_seed(300 + rank)
    half = args.steps // 2
    steps(model, opt, gen, 1, half, store, args.every)
    if store:
        print("written:", store.settle(), flush=True)
    dist.barrier()
    saved = Store(box[0]).newest()
    model.module.load_state_dict(saved["model"])
    loss = steps(model, opt, gen, saved["step"] + 1, args.steps, store, args.every)
    if store:
        print(f"written: {store.settle()} loss {loss:.4f}", flush=True)
    dist.barrier()
    if rank == 0:
        shutil.rmtree(box[0])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
