"""Clinics hold different amounts of records; nobody drops any."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset


def records(site, n, dim=30):
    g = torch.Generator().manual_seed(300 + site)
    w = torch.randn(dim, generator=torch.Generator().manual_seed(0))
    x = torch.randn(n, dim, generator=g)
    p = torch.sigmoid(2 * torch.tanh(x @ w) + (x[:, 0] * x[:, 1]))
    return TensorDataset(x, torch.bernoulli(p, generator=g))


def auc(score, label):
    order = score.argsort()
    ranks = torch.empty_like(score)
    ranks[order] = torch.arange(1, len(score) + 1, dtype=score.dtype)
    pos = label.sum()
    return ((ranks[label > 0].sum() - pos * (pos + 1) / 2) / (pos * (len(label) - pos))).item()


@torch.no_grad()
def evaluate(model, ds):
    model.eval()
    r, w = dist.get_rank(), dist.get_world_size()
    s = model(ds.tensors[0][r::w]).squeeze(1)
    parts = [torch.empty_like(s) for _ in range(w)]
    dist.all_gather(parts, s)
    model.train()
    return auc(torch.cat(parts), torch.cat([ds.tensors[1][k::w] for k in range(w)]))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=10)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--sizes", type=int, nargs="+", default=[2400, 2100, 2270])
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    ds = records(rank, args.sizes[rank])
    test = records(99, 1200)
    loader = DataLoader(ds, args.batch, shuffle=True, generator=torch.Generator().manual_seed(rank))
    model = DDP(nn.Sequential(nn.Linear(30, 128), nn.GELU(), nn.Linear(128, 64), nn.GELU(), nn.Linear(64, 1)))
    opt = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=1e-3)
    for epoch in range(args.epochs):
        seen = torch.zeros(2)
        with Join([model, opt]):
            for x, y in loader:
                opt.zero_grad()
                loss = F.binary_cross_entropy_with_logits(model(x).squeeze(1), y)
                loss.backward()
                opt.step()
                seen += torch.tensor([loss.item() * len(x), float(len(x))])
        dist.all_reduce(seen)
        a = evaluate(model.module, test)
        if rank == 0:
            print(f"epoch {epoch} records {int(seen[1])} loss {seen[0] / seen[1]:.4f} auc {a:.3f}", flush=True)
    if rank == 0:
        torch.save(model.module.state_dict(), "risk.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
