"""Mean teacher: half of the labels are hidden, the EMA copy gives targets for the rest."""
import argparse
import copy
import os
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class EMA:
    def __init__(self, net, decay):
        self.decay = decay
        self.net = copy.deepcopy(net).eval().requires_grad_(False)

    @torch.no_grad()
    def update(self, net):
        for e, p in zip(self.net.parameters(), net.parameters()):
            e.lerp_(p, 1 - self.decay)
        for e, b in zip(self.net.buffers(), net.buffers()):
            e.copy_(b)


def data(n=1640, dim=24):
    g = torch.Generator().manual_seed(31)
    x = torch.randn(n, dim, generator=g)
    y = (x[:, :3].sum(1) > 0).long() + 2 * (x[:, 3] * x[:, 4] > 0).long()
    hidden = torch.rand(n, generator=g) < 0.5
    return TensorDataset(x, torch.where(hidden, torch.tensor(-1), y))


def loss_fn(logits, y, teacher_logits, weight):
    sup = F.cross_entropy(logits, y, ignore_index=-1, reduction="sum") / max(1, int((y >= 0).sum()))
    cons = F.mse_loss(logits.softmax(-1), teacher_logits.softmax(-1))
    return sup + weight * cons


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=5)
    ap.add_argument("--batch", type=int, default=20)
    ap.add_argument("--accum", type=int, default=4)
    ap.add_argument("--decay", type=float, default=0.97)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    torch.manual_seed(2)
    net = nn.Sequential(nn.Linear(24, 96), nn.LayerNorm(96), nn.ReLU(), nn.Dropout(0.1), nn.Linear(96, 4))
    model = DDP(net)
    ema = EMA(net, args.decay)
    torch.manual_seed(200 + rank)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    ds = data()
    sampler = DistributedSampler(ds, seed=4)
    loader = DataLoader(ds, args.batch, sampler=sampler)
    n = len(loader)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total, weight = 0.0, min(1.0, epoch / 2) * 5
        for i, (x, y) in enumerate(loader):
            last = (i + 1) % args.accum == 0 or i + 1 == n
            window = args.accum if i < n - n % args.accum else n % args.accum
            with nullcontext() if last else model.no_sync():
                with torch.no_grad():
                    target = ema.net(x + 0.1 * torch.randn_like(x))
                loss = loss_fn(model(x + 0.1 * torch.randn_like(x)), y, target, weight)
                (loss / window).backward()
            total += loss.item()
            if last:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()
                opt.zero_grad()
                ema.update(net)
        t = torch.tensor(total / n)
        dist.all_reduce(t)
        if rank == 0:
            print(f"epoch {epoch} loss {t.item() / dist.get_world_size():.4f}", flush=True)
            torch.save({"net": net.state_dict(), "ema": ema.net.state_dict()}, "ckpt.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
