import torch
import torch.distributed as dist
import torch.distributed.nn as dist_nn
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Projector(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(48, 96), nn.LayerNorm(96), nn.GELU(), nn.Linear(96, 32))

    def forward(self, a, b):
        return self.net(a), self.net(b)


class RedundancyLoss(nn.Module):
    def __init__(self, lam=5e-3):
        super().__init__()
        self.lam = lam

    @staticmethod
    def standardise(z):
        n = z.shape[0]
        return (z - z.mean(0)) / (z.std(0) + 1e-5), n

    def forward(self, za, zb):
        za, n = self.standardise(za)
        zb, _ = self.standardise(zb)
        corr = za.t() @ zb / n
        corr = reduce_mean(corr)
        diag = torch.diagonal(corr)
        on = (diag - 1).pow(2).sum()
        off = corr.pow(2).sum() - diag.pow(2).sum()
        return on + self.lam * off


def reduce_mean(t):
    t = t / dist.get_world_size()
    dist.all_reduce(t)
    return t


class Views:
    def __init__(self, rank):
        self.g = torch.Generator().manual_seed(300 + rank)
        self.mix = torch.randn(12, 48, generator=torch.Generator().manual_seed(0))

    def next(self, n=64):
        x = torch.randn(n, 12, generator=self.g) @ self.mix
        noise = lambda: 0.5 * torch.randn(x.shape, generator=self.g)
        return x + noise(), x + noise()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(6)
    model = DDP(Projector())
    criterion = RedundancyLoss()
    opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    data = Views(rank)
    for step in range(250):
        za, zb = model(*data.next())
        loss = criterion(za, zb)
        opt.zero_grad()
        loss.backward()
        if step == 0:
            first_grad = sum(p.grad.pow(2).sum() for p in model.parameters()).sqrt().item()
        opt.step()
        if rank == 0 and step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
