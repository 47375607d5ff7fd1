"""Two-tower contrastive training, negatives from all ranks."""
import math
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from gather import gather_rows


@dataclass
class Options:
    pairs: int = 1152
    batch: int = 32
    epochs: int = 5
    dim: int = 32
    lr: float = 3e-3
    warmup: int = 10
    seed: int = 44


class Pairs(Dataset):
    """Two noisy views of one hidden vector: a signal and a token list."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        shared = torch.Generator().manual_seed(9)
        hidden = torch.randn(n, 6, generator=g)
        mix = torch.randn(6, 40, generator=shared)
        codes = torch.randn(6, 10, generator=shared)
        self.signal = torch.tanh(hidden @ mix) + 0.2 * torch.randn(n, 40, generator=g)
        level = (hidden @ codes + 0.3 * torch.randn(n, 10, generator=g)).clamp(-2.9, 2.9)
        self.tokens = ((level + 3) * 1.3).long() + 8 * torch.arange(10)

    def __len__(self):
        return len(self.signal)

    def __getitem__(self, i):
        return self.signal[i], self.tokens[i]


class TwoTower(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.signal = nn.Sequential(nn.Linear(40, 96), nn.GELU(), nn.LayerNorm(96), nn.Linear(96, dim))
        self.embed = nn.Embedding(80, 24)
        self.tokens = nn.Sequential(nn.Linear(240, 96), nn.GELU(), nn.LayerNorm(96), nn.Linear(96, dim))
        self.log_scale = nn.Parameter(torch.tensor(math.log(10.0)))

    def forward(self, signal, tokens):
        a = F.normalize(self.signal(signal), dim=1)
        b = F.normalize(self.tokens(self.embed(tokens).flatten(1)), dim=1)
        return a, b, self.log_scale.exp()


def contrastive(a, b, scale):
    every_a, every_b = gather_rows(a), gather_rows(b)
    target = torch.arange(len(a)) + dist.get_rank() * len(a)
    return 0.5 * (F.cross_entropy(scale * a @ every_b.t(), target) + F.cross_entropy(scale * b @ every_a.t(), target))


@torch.no_grad()
def recall(net, data, rank, world):
    net.eval()
    a, b, _ = net(data.signal, data.tokens)
    mine = torch.arange(rank, len(data), world)
    hit = ((a[mine] @ b.t()).argmax(1) == mine).sum().float()
    dist.all_reduce(hit)
    net.train()
    return hit.item() / len(data)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    o = Options()
    train, val = Pairs(o.pairs, 1), Pairs(192, 2)
    sampler = DistributedSampler(train, seed=o.seed, drop_last=True)
    loader = DataLoader(train, batch_size=o.batch, sampler=sampler, drop_last=True)
    torch.manual_seed(o.seed)
    net = TwoTower(o.dim)
    model = DDP(net)
    decay = [p for p in net.parameters() if p.ndim > 1]
    plain = [p for p in net.parameters() if p.ndim <= 1]
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}], lr=o.lr)
    total = o.epochs * len(loader)
    sched = torch.optim.lr_scheduler.LambdaLR(
        opt, lambda s: min(1.0, (s + 1) / o.warmup) * 0.5 * (1 + math.cos(math.pi * min(1.0, s / total)))
    )
    for epoch in range(o.epochs):
        sampler.set_epoch(epoch)
        meter = torch.zeros(2)
        for signal, tokens in loader:
            loss = contrastive(*model(signal, tokens))
            opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            opt.step()
            sched.step()
            with torch.no_grad():
                net.log_scale.clamp_(max=math.log(100.0))
            meter += torch.tensor([loss.item(), 1.0])
        dist.all_reduce(meter)
        r = recall(net, val, rank, world)
        if rank == 0:
            print(f"epoch {epoch} loss {meter[0] / meter[1]:.4f} recall@1 {r:.3f} scale {net.log_scale.exp():.1f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
