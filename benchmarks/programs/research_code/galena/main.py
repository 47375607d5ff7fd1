"""Next-token training of a small decoder with per-block sharding (fully_shard)."""
import argparse
import logging
import math
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from decoder import Decoder

logger = logging.getLogger("lm")


class Arithmetic(Dataset):
    """Digit strings 'a+b=c' with padding, as next-token task."""
    vocab = 13

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        ab = torch.randint(0, 100, (n, 2), generator=g).tolist()
        rows = [f"{a}+{b}={a + b}".ljust(10, "_") for a, b in ab]
        table = {c: i for i, c in enumerate("0123456789+=_")}
        self.tok = torch.tensor([[table[c] for c in r] for r in rows])

    def __len__(self):
        return len(self.tok)

    def __getitem__(self, i):
        return self.tok[i, :-1], self.tok[i, 1:]


class GradClipper:
    """Gradient-norm clipping that also keeps a history, without gathering any parameter."""

    def __init__(self, params, max_norm):
        self.params = list(params)
        self.max_norm = max_norm
        self.norms = []

    def __call__(self):
        sq = torch.zeros(())
        for p in self.params:
            if p.grad is not None:
                sq += p.grad.to_local().float().pow(2).sum()
        norm = sq.sqrt()
        coef = self.max_norm / (norm + 1e-6)
        if coef < 1:
            for p in self.params:
                if p.grad is not None:
                    p.grad.to_local().mul_(coef)
        self.norms.append(norm.item())
        return self.norms[-1]

    def summary(self):
        n, self.norms = self.norms, []
        return sum(n) / max(1, len(n)), sum(v > self.max_norm for v in n) / max(1, len(n))


def build(args, mesh):
    torch.manual_seed(args.seed)
    model = Decoder(Arithmetic.vocab, args.dim, args.depth, args.heads, 9)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    decay = [p for p in model.parameters() if p.ndim > 1]
    plain = [p for p in model.parameters() if p.ndim <= 1]
    opt = torch.optim.SGD([{"params": decay, "weight_decay": 1e-4}, {"params": plain, "weight_decay": 0.0}],
                          lr=args.lr, momentum=0.9, nesterov=True)
    return model, opt


def lr_at(step, total, base, warm):
    if step < warm:
        return base * (step + 1) / warm
    return base * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, total - warm)))


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    t = torch.zeros(3)
    for x, y in loader:
        out = model(x)
        t += torch.stack([F.cross_entropy(out.flatten(0, 1), y.flatten(), reduction="sum"),
                          (out.argmax(-1) == y).sum().float(), torch.tensor(float(y.numel()))])
    dist.all_reduce(t)
    model.train()
    return (t[0] / t[2]).item(), (t[1] / t[2]).item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--dim", type=int, default=48)
    p.add_argument("--depth", type=int, default=2)
    p.add_argument("--heads", type=int, default=4)
    p.add_argument("--lr", type=float, default=0.4)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--clip", type=float, default=0.15)
    p.add_argument("--seed", type=int, default=8)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.ERROR, format="%(message)s")
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("shard",))

    train, dev = Arithmetic(1536, 1), Arithmetic(256, 2)
    sampler = DistributedSampler(train, seed=args.seed, drop_last=True)
    loader = DataLoader(train, args.batch, sampler=sampler, drop_last=True)
    dev_loader = DataLoader(dev, 64, sampler=DistributedSampler(dev, shuffle=False))
    model, opt = build(args, mesh)
    clip = GradClipper(model.parameters(), args.clip)
    total, step = args.epochs * len(loader), 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        run, t0 = torch.zeros(()), time.time()
        for x, y in loader:
            for g in opt.param_groups:
                g["lr"] = lr_at(step, total, args.lr, 8)
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            loss.backward()
            clip()
            opt.step()
            opt.zero_grad()
            run += loss.detach()
            step += 1
        dist.all_reduce(run)
        ce, acc = evaluate(model, dev_loader)
        gn, share = clip.summary()
        logger.info("epoch %d train %.4f dev %.4f tok acc %.3f |g| %.3f clipped %.0f%% %.1fs", epoch,
                    run.item() / (world * len(loader)), ce, acc, gn, 100 * share, time.time() - t0)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
