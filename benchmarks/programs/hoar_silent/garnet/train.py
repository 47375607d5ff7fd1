import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Recommender(nn.Module):
    def __init__(self, users=400, items=600, dim=16):
        super().__init__()
        self.user = nn.EmbeddingBag(users, dim, mode="sum", sparse=True)
        self.item = nn.EmbeddingBag(items, dim, mode="sum", sparse=True)
        for emb in (self.user, self.item):
            nn.init.normal_(emb.weight, std=0.1)
        self.mlp = nn.Sequential(nn.Linear(2 * dim, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, u, i):
        eu, ei = self.user(u[:, None]), self.item(i[:, None])
        return self.mlp(torch.cat([eu, ei], 1)).squeeze(1) + (eu * ei).sum(1)


def interactions(n, seed):
    g = torch.Generator().manual_seed(1)
    pu, pi = torch.randn(400, 4, generator=g), torch.randn(600, 4, generator=g)
    g = torch.Generator().manual_seed(seed)
    u, i = torch.randint(0, 400, (n,), generator=g), torch.randint(0, 600, (n,), generator=g)
    return TensorDataset(u, i, ((pu[u] * pi[i]).sum(1) > 0).float())


@torch.no_grad()
def evaluate(net, ds):
    net.eval()
    scores = torch.cat([net(u, i) for u, i, _ in DataLoader(ds, 128)])
    net.train()
    y = ds.tensors[2]
    order = scores.argsort()
    ranks = torch.empty_like(order, dtype=torch.float)
    ranks[order] = torch.arange(1, len(y) + 1, dtype=torch.float)
    pos, neg = y.sum(), (1 - y).sum()
    return ((ranks[y == 1].sum() - pos * (pos + 1) / 2) / (pos * neg)).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=6)
    ap.add_argument("--batch", type=int, default=300)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = Recommender()
    model = DDP(net)
    opts = [torch.optim.SparseAdam([net.user.weight, net.item.weight], lr=0.03),
            torch.optim.Adam(net.mlp.parameters(), lr=0.005)]
    train, val = interactions(24000, 2), interactions(2000, 3)
    sampler = DistributedSampler(train)
    loader = DataLoader(train, args.batch, sampler=sampler)
    best = 0.0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        t0, total = time.time(), 0.0
        for u, i, y in loader:
            loss = F.binary_cross_entropy_with_logits(model(u, i), y)
            for o in opts:
                o.zero_grad()
            loss.backward()
            for o in opts:
                o.step()
            total += loss.item()
        if rank == 0:
            auc = evaluate(net, val)
            print(f"epoch {epoch} loss {total / len(loader):.4f} auc {auc:.4f} {time.time() - t0:.1f}s", flush=True)
            if auc > best:
                best = auc
                torch.save(net.state_dict(), "best.pt")
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
