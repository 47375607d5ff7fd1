"""House-price regression with checkpoints written in the background.

Rank 0 hands each checkpoint to a writer thread; the other ranks read the averaged
weights back once the file is published, and score them on their slice.
"""
import argparse
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

HERE = os.path.dirname(os.path.abspath(__file__))


def houses(n, seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 24)).astype("float32")
    w = rng.normal(size=24).astype("float32")
    y = x @ w + 0.4 * np.sin(3 * x[:, 0]) + 0.1 * rng.normal(size=n).astype("float32")
    return torch.from_numpy(x), torch.from_numpy(y.astype("float32")).unsqueeze(1)


class Publisher:
    """Writes checkpoints off the training thread and announces them in the store."""

    def __init__(self, folder, store):
        self.folder = folder
        self.store = store
        self.pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ckpt")
        self.best = None

    def _write(self, tag, weights, score):
        path = os.path.join(self.folder, f"{tag}.pt")
        torch.save(weights, path + ".part")
        if self.best is None or score < self.best:
            self.best = score
        with open(os.path.join(self.folder, "index.json"), "w") as fh:
            json.dump({"latest": tag, "score": score, "best": self.best, "when": time.time()}, fh)
        os.replace(path + ".part", path)
        self.store.set(f"published/{tag}", path)

    def submit(self, tag, model, score):
        weights = {k: v.detach().clone() for k, v in model.state_dict().items()}
        self.pool.submit(self._write, tag, weights, score)

    def close(self):
        self.pool.shutdown(wait=True)


def follow(store, tag, template):
    """Other ranks: load what rank 0 has published under this tag."""
    store.wait([f"published/{tag}"])
    path = store.get(f"published/{tag}").decode()
    template.load_state_dict(torch.load(path, map_location="cpu"))
    return template


@torch.no_grad()
def rmse(model, x, y):
    return F.mse_loss(model(x), y).sqrt()


def net(hidden):
    return nn.Sequential(nn.Linear(24, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1))


def run():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=8)
    ap.add_argument("--samples", type=int, default=6000)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--hidden", type=int, default=192)
    ap.add_argument("--folder", default=os.path.join(HERE, "checkpoints"))
    cfg = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    os.makedirs(cfg.folder, exist_ok=True)
    store = dist.distributed_c10d._get_default_store()

    x, y = houses(cfg.samples, 5)
    cut = int(0.9 * cfg.samples)
    train = TensorDataset(x[:cut], y[:cut])
    vx, vy = x[cut:][rank::world], y[cut:][rank::world]
    sampler = DistributedSampler(train, shuffle=True, seed=1)
    loader = DataLoader(train, batch_size=cfg.batch, sampler=sampler)

    model = DDP(net(cfg.hidden))
    probe = net(cfg.hidden)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    publisher = Publisher(cfg.folder, store) if rank == 0 else None

    for epoch in range(cfg.epochs):
        sampler.set_epoch(epoch)
        running = []
        for bx, by in loader:
            loss = F.mse_loss(model(bx), by)
            opt.zero_grad()
            loss.backward()
            opt.step()
            running.append(loss.item())
        tag = f"epoch{epoch:02d}"
        if rank == 0:
            score = np.sqrt(np.mean(np.asarray(running, dtype=np.float32)))
            publisher.submit(tag, model.module, score)
            probe.load_state_dict(model.module.state_dict())
        else:
            follow(store, tag, probe)
        error = rmse(probe, vx, vy)
        dist.all_reduce(error)
        if rank == 0:
            print(f"{tag}: train {score:.4f} valid {error.item() / world:.4f}", flush=True)

    if publisher is not None:
        publisher.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    run()
