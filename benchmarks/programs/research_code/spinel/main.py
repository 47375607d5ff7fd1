"""Two-tower contrastive training (image-like vs text-like views) over the global batch."""
import argparse
import json
import logging
import math
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

log = logging.getLogger("clip")


def pairs(n, seed):
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(n, 8, generator=g)
    a = torch.randn(8, 40, generator=torch.Generator().manual_seed(1))
    b = torch.randn(8, 24, generator=torch.Generator().manual_seed(2))
    return TensorDataset((z @ a).tanh() + 0.2 * torch.randn(n, 40, generator=g), (z @ b).sin() + 0.2 * torch.randn(n, 24, generator=g))


def tower(i, o):
    return nn.Sequential(nn.Linear(i, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, o))


class TwoTower(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.left, self.right = tower(40, dim), tower(24, dim)
        self.log_scale = nn.Parameter(torch.tensor(math.log(1 / 0.1)))

    def forward(self, a, b):
        return F.normalize(self.left(a), dim=-1), F.normalize(self.right(b), dim=-1), self.log_scale.exp().clamp(max=50.0)


class GlobalContrastive:
    """Cross entropy against the candidates of all ranks.

    Foreign embeddings come through a plain all_gather and are constants here, their owner computes that
    part: every rank builds the whole loss with its own rows and columns attached.
    """

    def __init__(self, rank, world):
        self.rank, self.world = rank, world

    def _with_local(self, x):
        parts = [torch.empty_like(x) for _ in range(self.world)]
        dist.all_gather(parts, x.detach().contiguous())
        parts[self.rank] = x
        return torch.cat(parts)

    def __call__(self, a, b, scale):
        ga, gb = self._with_local(a), self._with_local(b)
        shared = scale / self.world + (scale - scale / self.world).detach()
        logits = shared * ga @ gb.t()
        target = torch.arange(len(logits))
        loss = 0.5 * (F.cross_entropy(logits, target) + F.cross_entropy(logits.t(), target))
        return loss, loss * self.world


@torch.no_grad()
def retrieval(net, ds, rank, world):
    net.eval()
    a, b = ds.tensors
    ea, eb, _ = net(a, b)
    mine = torch.arange(rank, len(a), world)
    hit = ((ea[mine] @ eb.t()).argmax(1) == mine).sum().double()
    dist.all_reduce(hit)
    net.train()
    return hit.item() / len(a)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--global-batch", type=int, default=64)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--warmup", type=int, default=6)
    p.add_argument("--seed", type=int, default=18)
    p.add_argument("--out", default="clip_out")
    a = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.ERROR, format="%(message)s")
    torch.manual_seed(a.seed)
    train, test = pairs(960, 3), pairs(160, 4)
    sampler = DistributedSampler(train, seed=a.seed, drop_last=True)
    loader = DataLoader(train, a.global_batch // world, sampler=sampler, drop_last=True)
    model = DDP(TwoTower())
    criterion = GlobalContrastive(rank, world)
    plain = [q for n, q in model.named_parameters() if q.ndim < 2]
    heavy = [q for n, q in model.named_parameters() if q.ndim >= 2]
    opt = torch.optim.AdamW([{"params": heavy, "weight_decay": 1e-4}, {"params": plain, "weight_decay": 0.0}], lr=a.lr)
    total = a.epochs * len(loader)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / a.warmup) * 0.5 * (1 + math.cos(math.pi * s / total)))
    hist = []
    for epoch in range(a.epochs):
        sampler.set_epoch(epoch)
        run, gn = 0.0, 0.0
        for x, y in loader:
            shown, loss = criterion(*model(x, y))
            opt.zero_grad(set_to_none=True)
            loss.backward()
            gn += nn.utils.clip_grad_norm_(model.parameters(), 10.0).item()
            opt.step()
            sched.step()
            run += shown.item()
        r1 = retrieval(model.module, test, rank, world)
        hist.append({"epoch": epoch, "loss": run / len(loader), "grad": gn / len(loader), "r1": r1})
        log.info("epoch %d loss %.5f |g| %.5f R@1 %.3f scale %.2f", epoch, run / len(loader), gn / len(loader), r1,
                 model.module.log_scale.exp().item())
    if rank == 0:
        out = Path(a.out)
        out.mkdir(exist_ok=True)
        (out / "history.json").write_text(json.dumps(hist))
        torch.save(model.module.state_dict(), out / "two_tower.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
