import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from engine import ModelEngine


class Residual(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.f = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, d), nn.ReLU(), nn.Linear(d, d))

    def forward(self, x):
        return x + self.f(x)


def build(d=40, classes=8):
    return nn.Sequential(nn.Linear(16, d), Residual(d), Residual(d), nn.Linear(d, classes))


def data(n=800):
    g = torch.Generator().manual_seed(90)
    c = torch.randn(8, 16, generator=g)
    y = torch.randint(0, 8, (n,), generator=g)
    return TensorDataset(4 * (c[y] + 0.8 * torch.randn(n, 16, generator=g)), y)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(61)
    engine = ModelEngine(build(), max_grad_norm=1.0)
    ds = data()
    sampler = DistributedSampler(ds, seed=8)
    loader = DataLoader(ds, batch_size=20, sampler=sampler, drop_last=True)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        norms = []
        for x, y in loader:
            loss = F.cross_entropy(engine.forward(x), y)
            engine.backward(loss)
            norms.append(engine.step())
        if dist.get_rank() == 0:
            print(f"epoch {epoch} loss {loss.item():.4f} grad norm {sum(norms) / len(norms):.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
