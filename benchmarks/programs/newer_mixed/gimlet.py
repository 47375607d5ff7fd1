"""Head first, trunk later: the trunk's rate is zero in the first phase, then rises."""
import dataclasses

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


@dataclasses.dataclass
class Plan:
    epochs: int = 5
    head_only_epochs: int = 2
    batch: int = 16
    lr: float = 5e-3
    patience: int = 0

    def trunk_factor(self, epoch):
        if epoch < self.head_only_epochs:
            return 0.0
        return min(1.0, 0.25 * (epoch - self.head_only_epochs + 1))

    def head_factor(self, epoch):
        return 1.0 if epoch < self.head_only_epochs else 0.3


def blobs(seed=2, n=448):
    g = torch.Generator().manual_seed(seed)
    mu = torch.randn(5, 12, generator=g)
    y = torch.randint(0, 5, (n,), generator=g)
    return mu[y] + 0.7 * torch.randn(n, 12, generator=g), y


@torch.no_grad()
def evaluate(model, x, y, rank, world):
    """Each rank takes its own slice; the sums are joined before anyone decides anything."""
    xs, ys = x[rank::world], y[rank::world]
    s = torch.tensor([F.cross_entropy(model(xs), ys, reduction="sum").item(), float(len(xs))], dtype=torch.float64)
    dist.all_reduce(s)
    return (s[0] / s[1]).item()


def main():
    plan = Plan()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    x, y = blobs()
    train = TensorDataset(x[:384], y[:384])
    sampler = DistributedSampler(train)
    loader = DataLoader(train, plan.batch, sampler=sampler, drop_last=True)
    trunk = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
    head = nn.Linear(32, 5)
    model = DDP(nn.Sequential(trunk, head))
    opt = torch.optim.Adam([{"params": trunk.parameters()}, {"params": head.parameters()}], lr=plan.lr)
    staged = torch.optim.lr_scheduler.LambdaLR(opt, [plan.trunk_factor, plan.head_factor])
    best = float("inf")
    for epoch in range(plan.epochs):
        sampler.set_epoch(epoch)
        for xb, yb in loader:
            loss = F.cross_entropy(model(xb), yb)
            opt.zero_grad()
            loss.backward()
            opt.step()
        staged.step()
        val = evaluate(model.module, x[384:], y[384:], rank, world)
        best = min(best, val)
        if rank == 0:
            rates = ", ".join(f"{r:.5f}" for r in staged.get_last_lr())
            print(f"epoch {epoch}: validation {val:.4f} best {best:.4f} next rates {rates}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
