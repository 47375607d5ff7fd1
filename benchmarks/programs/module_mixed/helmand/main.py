import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from sharded import ShardedEmbedding

USERS, ITEMS, D, STEPS, BATCH = 300, 200, 16, 20, 64


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2 * D, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, u, i):
        return self.net(torch.cat([u, i], 1)).squeeze(1) + (u * i).sum(1)


class Clicks:
    def __init__(self, rank):
        self.g = torch.Generator().manual_seed(70 + rank)
        h = torch.Generator().manual_seed(0)
        self.u, self.i = torch.randn(USERS, 4, generator=h), torch.randn(ITEMS, 4, generator=h)

    def batch(self):
        u = torch.randint(0, USERS, (BATCH,), generator=self.g)
        i = torch.randint(0, ITEMS, (BATCH,), generator=self.g)
        return u, i, ((self.u[u] * self.i[i]).sum(1) > 0).float()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    users, items = ShardedEmbedding(USERS, D), ShardedEmbedding(ITEMS, D)
    torch.manual_seed(8)
    tower = DDP(Tower())
    dense = torch.optim.AdamW(tower.parameters(), lr=5e-3)
    sparse = torch.optim.Adagrad([users.table, items.table], lr=0.1)
    clicks = Clicks(rank)
    for step in range(STEPS):
        u, i, y = clicks.batch()
        loss = F.binary_cross_entropy_with_logits(tower(users(u), items(i)), y)
        dense.zero_grad()
        sparse.zero_grad()
        loss.backward()
        dense.step()
        sparse.step()
        if step % 5 == 0 and rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
