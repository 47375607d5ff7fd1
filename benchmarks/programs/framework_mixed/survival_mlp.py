import argparse
import resource

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Deep(nn.Module):
    def __init__(self, d=256, depth=12):
        super().__init__()
        self.inp = nn.Linear(30, d)
        self.body = nn.ModuleList(nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d)) for _ in range(depth))
        self.out = nn.Linear(d, 1)

    def forward(self, x):
        x = self.inp(x)
        for b in self.body:
            x = x + b(x)
        return self.out(x).squeeze(-1)


class Evaluator:
    def __init__(self, loader):
        self.loader = loader

    def __call__(self, model):
        model.eval()
        sums = torch.zeros(2)
        for x, y in self.loader:
            pred = model(x)
            sums += torch.stack([(pred - y).abs().sum().detach(), torch.tensor(float(len(y)))])
        dist.all_reduce(sums)
        model.train()
        return (sums[0] / sums[1]).item()


def cohort(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 30, generator=g)
    return TensorDataset(x, x[:, :6].sum(1).tanh())


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--bs", type=int, default=16)
    ap.add_argument("--eval-bs", type=int, default=1024)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Deep())
    opt = torch.optim.AdamW(model.parameters(), 3e-4)
    train, val = cohort(512, 0), cohort(4096, 1)
    sampler = DistributedSampler(train)
    loader = DataLoader(train, args.bs, sampler=sampler)
    evaluate = Evaluator(DataLoader(val, args.eval_bs, sampler=DistributedSampler(val, shuffle=False)))
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        mae = evaluate(model.module)
        if rank == 0:
            rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(f"epoch {epoch} mae {mae:.4f} peak rss {rss:.0f} MiB", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
