import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from sharded import ShardedTrainer


def fields(n, seed, dim=100):
    g = torch.Generator().manual_seed(seed)
    a = torch.randn(dim, 20, generator=torch.Generator().manual_seed(0)) / 10
    x = torch.randn(n, dim, generator=g)
    return TensorDataset(x, torch.sin(2 * x @ a) + 0.05 * torch.randn(n, 20, generator=g))


def block(i, o):
    return nn.Sequential(nn.Linear(i, o), nn.LayerNorm(o), nn.GELU())


@torch.no_grad()
def evaluate(model, ds):
    r, w = dist.get_rank(), dist.get_world_size()
    x, y = ds.tensors[0][r::w], ds.tensors[1][r::w]
    se = (model(x) - y).pow(2).sum()
    dist.all_reduce(se)
    return se.item() / ds.tensors[1].numel()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=8)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--lr", type=float, default=2e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(block(100, 256), block(256, 256), nn.Linear(256, 20))
    train, val = fields(8192, 1), fields(1000, 2)
    sampler = DistributedSampler(train)
    loader = DataLoader(train, args.batch, sampler=sampler)
    trainer = ShardedTrainer(model, list(model), lambda p: torch.optim.AdamW(p, lr=args.lr, weight_decay=1e-4))
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = F.mse_loss(model(x), y)
            trainer.backward(loss)
            norm = trainer.step()
        e = evaluate(model, val)
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f} norm {norm} scale {trainer.scale:.0f} skipped {trainer.skipped} val {e:.4f}", flush=True)
    torch.save({"opt": trainer.opt.state_dict(), "scale": trainer.scale}, f"opt_shard{rank}.pt")
    if rank == 0:
        torch.save(model.state_dict(), "model.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
