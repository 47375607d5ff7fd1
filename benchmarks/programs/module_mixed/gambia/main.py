"""A deep ensemble: each rank trains its own member on its own bootstrap; only predictions are shared."""
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

EPOCHS, BATCH = 4, 32


def moons(n, seed):
    g = torch.Generator().manual_seed(seed)
    t = torch.rand(n, generator=g) * 3.1416
    y = torch.randint(0, 2, (n,), generator=g)
    x = torch.stack([t.cos() + y, t.sin() * (1 - 2 * y) + 0.5 * y], 1)
    return x + 0.2 * torch.randn(n, 2, generator=g), y


class Member(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))

    def forward(self, x):
        return self.net(x)


def bootstrap_loader(x, y, rank):
    g = torch.Generator().manual_seed(1234 + rank)
    ds = TensorDataset(x, y)
    return DataLoader(ds, batch_size=BATCH, sampler=RandomSampler(ds, replacement=True, generator=g))


@torch.no_grad()
def ensemble_predict(member, x):
    prob = member(x).softmax(-1)
    every = [torch.empty_like(prob) for _ in range(dist.get_world_size())]
    dist.all_gather(every, prob)
    stack = torch.stack(every)
    return stack.mean(0), stack.var(0).sum(-1)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(50 + rank)
    member = Member(width=32 + 8 * rank)
    opt = torch.optim.Adam(member.parameters(), lr=3e-3 * (1 + rank))
    loader = bootstrap_loader(*moons(384, 1), rank)
    tx, ty = moons(200, 2)
    for epoch in range(EPOCHS):
        for x, y in loader:
            loss = F.cross_entropy(member(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        prob, spread = ensemble_predict(member, tx)
        if rank == 0:
            acc = (prob.argmax(1) == ty).float().mean()
            print(f"epoch {epoch} accuracy {acc:.3f} disagreement {spread.mean():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
