"""Image classifier with low-rank gradient compression after a warm start."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as psgd
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def data(n, seed, dim=256, classes=10):
    g = torch.Generator().manual_seed(seed)
    c = torch.randn(classes, dim, generator=torch.Generator().manual_seed(0))
    y = torch.arange(n) % classes
    return TensorDataset(0.22 * c[y] + torch.randn(n, dim, generator=g), y)


class MLP(nn.Module):
    def __init__(self, dim=256, width=384, classes=10):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(dim, width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, width), nn.ReLU(),
                               nn.Dropout(0.2), nn.Linear(width, classes))

    def forward(self, x):
        return self.f(x)


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    t = torch.zeros(2)
    for x, y in loader:
        out = model(x)
        t += torch.stack([F.cross_entropy(out, y, reduction="sum"), (out.argmax(1) == y).sum().float()])
    dist.all_reduce(t)
    model.train()
    return (t / len(loader.dataset)).tolist()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=6)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--rank-k", type=int, default=4)
    ap.add_argument("--start", type=int, default=40)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    train, val = data(4096, 1), data(1000, 2)
    sampler = DistributedSampler(train)
    loader = DataLoader(train, args.batch, sampler=sampler)
    val_loader = DataLoader(val, 125, sampler=DistributedSampler(val, shuffle=False))
    model = DDP(MLP())
    torch.manual_seed(rank)
    state = psgd.PowerSGDState(process_group=None, matrix_approximation_rank=args.rank_k,
                               start_powerSGD_iter=args.start, use_error_feedback=True, warm_start=True)
    model.register_comm_hook(state, psgd.powerSGD_hook)
    opt = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.epochs)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            opt.zero_grad(set_to_none=True)
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
        sched.step()
        vl, va = evaluate(model.module, val_loader)
        if rank == 0:
            print(f"epoch {epoch} train {loss.item():.4f} val {vl:.4f} acc {va:.3f} ratio {state.compression_stats()[0]:.1f}", flush=True)
    if rank == 0:
        torch.save(model.module.state_dict(), "mlp.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
