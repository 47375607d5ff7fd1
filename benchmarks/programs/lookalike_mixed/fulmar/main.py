import argparse

import torch
import torch.distributed as dist
import torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook as post_local
import torch.nn as nn
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.algorithms.model_averaging.utils import average_parameters
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def build(args):
    torch.manual_seed(12)
    model = DDP(nn.Sequential(nn.Linear(12, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 1)))
    solo = [dist.new_group([r]) for r in range(dist.get_world_size())][dist.get_rank()]
    state = post_local.PostLocalSGDState(process_group=None, subgroup=solo, start_localSGD_iter=args.warm)
    model.register_comm_hook(state, post_local.post_localSGD_hook)
    inner = torch.optim.SGD(model.parameters(), lr=args.lr)
    averager = PeriodicModelAverager(period=args.period, warmup_steps=args.warm)
    return model, PostLocalSGDOptimizer(optim=inner, averager=averager)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--warm", type=int, default=24)
    p.add_argument("--period", type=int, default=4)
    p.add_argument("--lr", type=float, default=0.05)
    args = p.parse_args()
    dist.init_process_group("gloo")
    model, opt = build(args)
    g = torch.Generator().manual_seed(40)
    x = torch.randn(640, 12, generator=g)
    ds = TensorDataset(x, (x[:, :1] * x[:, 1:2]).tanh())
    loader = DataLoader(ds, batch_size=16, sampler=DistributedSampler(ds, seed=10), drop_last=True)
    for epoch in range(5):
        loader.sampler.set_epoch(epoch)
        total = torch.zeros(())
        for x, y in loader:
            opt.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            opt.step()
            total += loss.detach()
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            print(f"epoch {epoch} loss {float(total) / len(loader) / dist.get_world_size():.4f}", flush=True)
    average_parameters(model.parameters(), dist.group.WORLD)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
