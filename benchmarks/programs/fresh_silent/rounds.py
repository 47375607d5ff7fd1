import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Curves(Dataset):
    def __init__(self, n=1024, dim=16):
        g = torch.Generator().manual_seed(44)
        self.x = torch.randn(n, dim, generator=g)
        self.y = torch.tanh(self.x @ torch.randn(dim, 1, generator=g))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class OuterStep:
    """Keeps the shared weights and moves them by the averaged change of the local ones."""

    def __init__(self, model, lr, momentum):
        self.model = model
        self.shared = [p.detach().clone().requires_grad_(True) for p in model.parameters()]
        self.optimizer = torch.optim.SGD(self.shared, lr=lr, momentum=momentum, nesterov=True)

    @torch.no_grad()
    def __call__(self):
        for anchor, local in zip(self.shared, self.model.parameters()):
            delta = anchor - local
            dist.all_reduce(delta)
            anchor.grad = delta / dist.get_world_size()
        self.optimizer.step()
        self.optimizer.zero_grad()
        for anchor, local in zip(self.shared, self.model.parameters()):
            local.copy_(anchor)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--inner", type=int, default=8)
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--outer-lr", type=float, default=0.7)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(9)
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 1))
    for t in model.parameters():
        dist.broadcast(t.data, src=0)
    outer = OuterStep(model, args.outer_lr, momentum=0.9)
    inner = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = Curves()
    sampler = DistributedSampler(data, world, rank, shuffle=True, seed=1)
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    step = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = F.mse_loss(model(x), y)
            inner.zero_grad()
            loss.backward()
            inner.step()
            step += 1
            if step % args.inner == 0:
                outer()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"epoch {epoch} loss {mean.item() / world:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
