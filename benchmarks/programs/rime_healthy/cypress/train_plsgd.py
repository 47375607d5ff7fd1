import argparse

import torch
import torch.distributed as dist
import torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook as post
import torch.distributed.algorithms.model_averaging.averagers as averagers
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def tabular(n, seed, dim=48):
    g = torch.Generator().manual_seed(seed)
    gw = torch.Generator().manual_seed(0)
    w = torch.randn(dim, 6, generator=gw) / dim ** 0.5
    x = torch.randn(n, dim, generator=g)
    h = x @ w
    y = (h[:, 0] * h[:, 1] + torch.sin(2 * h[:, 2]) + h[:, 3].relu())[:, None]
    return TensorDataset(x, y + 0.05 * torch.randn(n, 1, generator=g))


class Regressor(nn.Module):
    def __init__(self, dim=48, h=192):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(dim, h), nn.SiLU(), nn.Linear(h, h), nn.SiLU(), nn.Linear(h, 1))

    def forward(self, x):
        return self.f(x)


@torch.no_grad()
def rmse(model, ds):
    r, w = dist.get_rank(), dist.get_world_size()
    x, y = ds.tensors[0][r::w], ds.tensors[1][r::w]
    se = (model(x) - y).pow(2).sum()
    dist.all_reduce(se)
    return (se / len(ds)).sqrt().item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=8)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--warm", type=int, default=100)
    ap.add_argument("--period", type=int, default=4)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    train, val = tabular(8192, 1), tabular(1000, 2)
    sampler = DistributedSampler(train)
    loader = DataLoader(train, args.batch, sampler=sampler)
    total = args.epochs * len(loader)
    net = DDP(Regressor())
    alone = None
    for r in range(world):
        g = dist.new_group([r])
        if r == rank:
            alone = g
    net.register_comm_hook(post.PostLocalSGDState(process_group=None, subgroup=alone, start_localSGD_iter=args.warm),
                           post.post_localSGD_hook)
    opt = PostLocalSGDOptimizer(torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9),
                                averagers.PeriodicModelAverager(period=args.period, warmup_steps=args.warm))
    final = averagers.PeriodicModelAverager(period=1)
    step = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            for group in opt.param_groups:
                group["lr"] = 0.02 * (1 - step / total)
            loss = F.mse_loss(net(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
        final.average_parameters(net.parameters())
        e = rmse(net.module, val)
        if rank == 0:
            print(f"epoch {epoch} step {step} mse {loss.item():.4f} val rmse {e:.4f}", flush=True)
    if rank == 0:
        torch.save(net.module.state_dict(), "reg.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
