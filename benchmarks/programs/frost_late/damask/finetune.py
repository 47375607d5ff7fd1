"""Head first, then the body (its learning rate starts at zero), then the stem as well."""
import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from model import SmallNet


def batches(rank, start, stop):
    for step in range(start, stop):
        g = torch.Generator().manual_seed(1000 * step + rank)
        y = torch.randint(0, 4, (16,), generator=g)
        x = torch.randn(16, 3, 12, 12, generator=g)
        x[:, 0] += (y.float() - 1.5)[:, None, None]
        yield step, x, y


def run_phase(model, opt, sched, rank, start, stop):
    model.train()
    for step, x, y in batches(rank, start, stop):
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if step % 6 == 0 and rank == 0:
            lrs = [round(g["lr"], 4) for g in opt.param_groups]
            print(f"step {step} loss {loss.item():.4f} lrs {lrs}", flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--hold", type=int, default=10)
    ap.add_argument("--thaw", type=int, default=24)
    ap.add_argument("--steps", type=int, default=40)
    ap.add_argument("--lr", type=float, default=0.05)
    a = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = SmallNet().freeze_stem(True)
    opt = torch.optim.SGD([{"params": net.head.parameters()}, {"params": net.body.parameters()}], lr=a.lr, momentum=0.9)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, [lambda s: 1.0, lambda s: 0.0 if s < a.hold else 0.5])
    run_phase(DDP(net), opt, sched, rank, 0, a.thaw)

    net.freeze_stem(False)
    opt = torch.optim.SGD([{"params": net.head.parameters(), "lr": a.lr}, {"params": net.body.parameters(), "lr": a.lr / 2},
                           {"params": net.stem.parameters(), "lr": a.lr / 5}], momentum=0.9)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, a.steps - a.thaw)
    run_phase(DDP(net), opt, sched, rank, a.thaw, a.steps)
    print(f"rank {rank} w {sum(p.double().sum().item() for p in net.parameters()):.7f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
