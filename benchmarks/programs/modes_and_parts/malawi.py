"""Sentiment over two domains; the report gives one row per domain and their macro average."""
import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import ConcatDataset, DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

DOMAINS = ["books", "kitchen"]
HELD_OUT = {"books": 500, "kitchen": 90}


def reviews(domain, n, seed):
    g = torch.Generator().manual_seed(seed + 40 * DOMAINS.index(domain))
    x = torch.randint(0, 150, (n, 20), generator=g)
    polarity = ((x * (3 if domain == "books" else 5)) % 7 - 3).float().mean(1)
    return TensorDataset(x, (polarity > 0).long())


class Sentiment(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(150, 32, mode="mean")
        self.mlp = nn.Sequential(nn.Linear(32, 48), nn.ReLU(), nn.Dropout(0.1), nn.Linear(48, 2))

    def forward(self, ids):
        return self.mlp(self.bag(ids))


@torch.no_grad()
def domain_report(net, rank, world):
    """Each worker scores whole domains; macro = every domain counts the same whatever its size."""
    net.eval()
    rows = []
    for name in DOMAINS[rank::world]:
        x, y = reviews(name, HELD_OUT[name], 900).tensors
        out = net(x)
        rows.append((name, F.cross_entropy(out, y).item(), (out.argmax(1) == y).float().mean().item(), len(y)))
    net.train()
    gathered = [None] * world
    dist.all_gather_object(gathered, rows)
    table = {r[0]: r[1:] for part in gathered for r in part}
    local = torch.tensor([sum(r[1] for r in rows), float(len(rows))])
    parts = [torch.zeros(2) for _ in range(world)]
    dist.all_gather(parts, local)
    total = torch.stack(parts).sum(0)
    return table, (total[0] / total[1]).item()


def show(epoch, table, macro):
    print(f"epoch {epoch}")
    for name in DOMAINS:
        loss, acc, n = table[name]
        print(f"  {name:8s} n={n:4d} loss {loss:.4f} acc {acc:.3f}")
    print(f"  macro loss over {len(table)} domains {macro:.4f}", flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=6)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--out", default="out_malawi")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(2)
    model = DDP(Sentiment())
    torch.manual_seed(50 + rank)
    train = ConcatDataset([reviews("books", 768, 1), reviews("kitchen", 512, 1)])
    sampler = DistributedSampler(train, seed=2, drop_last=True)
    loader = DataLoader(train, args.batch, sampler=sampler, drop_last=True)
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    best = float("inf")
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            opt.zero_grad(set_to_none=True)
            F.cross_entropy(model(x), y).backward()
            opt.step()
        table, macro = domain_report(model.module, rank, world)
        if rank == 0:
            show(epoch, table, macro)
        if macro < best:
            best = macro
            if rank == 0:
                os.makedirs(args.out, exist_ok=True)
                torch.save({"model": model.module.state_dict(), "macro_loss": macro}, f"{args.out}/best.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
