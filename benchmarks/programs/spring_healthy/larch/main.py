import argparse
import logging
import os
import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from saver import BackgroundSaver, load_latest


class Forecaster(nn.Module):
    def __init__(self, hidden=128):
        super().__init__()
        self.rnn = nn.GRU(6, hidden, num_layers=2, batch_first=True)
        self.head = nn.Sequential(nn.Linear(hidden, 512), nn.ReLU(), nn.Linear(512, 6 * 12))

    def forward(self, x):
        h, _ = self.rnn(x)
        return self.head(h[:, -1]).view(-1, 12, 6)


def windows(n, seed):
    g = torch.Generator().manual_seed(seed)
    t = torch.arange(60).float()
    f = torch.rand(n, 1, 6, generator=g) * 0.4 + 0.05
    p = torch.rand(n, 1, 6, generator=g) * 6.28
    s = torch.sin(t[None, :, None] * f + p) + 0.05 * torch.randn(n, 60, 6, generator=g)
    return s[:, :48], s[:, 48:]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=110)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--save-every", type=int, default=10)
    ap.add_argument("--out", default=None)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(asctime)s %(message)s")
    root = [args.out or tempfile.mkdtemp(prefix="forecast-")] if rank == 0 else [None]
    dist.broadcast_object_list(root, src=0)
    root = root[0]

    torch.manual_seed(0)
    model = DDP(Forecaster())
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    x, y = windows(4000, seed=3)
    draw = torch.Generator().manual_seed(71 + rank)
    saver = BackgroundSaver(root)

    for step in range(1, args.steps + 1):
        idx = torch.randint(0, len(x) // world, (args.batch,), generator=draw) * world + rank
        loss = F.mse_loss(model(x[idx]), y[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % args.save_every == 0:
            saver.submit(step, model.module, opt)
            logging.info("step %d loss %.4f", step, loss.item())
    saver.close()
    dist.barrier()

    step, merged = load_latest(root)
    live = model.module.state_dict()
    assert step == args.steps // args.save_every * args.save_every
    assert merged["model"].keys() == live.keys()
    gap = max((merged["model"][k] - live[k]).abs().max().item() for k in live)
    logging.info("latest is step %d, %d tensors, distance to live weights %.3g, on disk %s", step, len(live), gap, sorted(os.listdir(root)))
    dist.barrier()
    if rank == 0 and args.out is None:
        shutil.rmtree(root)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
