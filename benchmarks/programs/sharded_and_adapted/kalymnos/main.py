"""Train a small mixture-of-experts classifier, experts parallel, everything else data parallel."""
import argparse
import json
import os
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn.functional as F

from moe import MoENet, is_expert, synchronize_gradients


def options():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--global-batch", type=int, default=192)
    ap.add_argument("--lr", type=float, default=0.1)
    ap.add_argument("--momentum", type=float, default=0.9)
    ap.add_argument("--balance", type=float, default=0.02)
    ap.add_argument("--clip", type=float, default=5.0)
    ap.add_argument("--seed", type=int, default=13)
    ap.add_argument("--log", default="runs/kalymnos.json")
    return ap.parse_args()


def make_data(n, seed):
    fixed = torch.Generator().manual_seed(5)
    centres = torch.randn(12, 32, generator=fixed) * 1.2
    maps = torch.randn(12, 32, 8, generator=fixed)
    g = torch.Generator().manual_seed(seed)
    which = torch.randint(0, 12, (n,), generator=g)
    x = centres[which] + 0.7 * torch.randn(n, 32, generator=g)
    y = torch.einsum("nf,nfc->nc", x, maps[which]).argmax(-1)
    return x, y


def clip(model, ceiling):
    shared = sum(p.grad.pow(2).sum() for p in model.parameters() if not is_expert(p))
    own = sum(p.grad.pow(2).sum() for p in model.parameters() if is_expert(p))
    own = own.clone()
    dist.all_reduce(own)
    norm = (shared + own).sqrt()
    factor = (ceiling / (norm + 1e-6)).clamp(max=1.0)
    for p in model.parameters():
        p.grad.mul_(factor)
    return norm.item()


@torch.no_grad()
def accuracy(model, x, y):
    rank, world = dist.get_rank(), dist.get_world_size()
    model.eval()
    logits, _ = model(x[rank::world])
    stats = torch.tensor([(logits.argmax(-1) == y[rank::world]).sum().item(), len(y[rank::world])])
    dist.all_reduce(stats)
    model.train()
    return stats[0].item() / stats[1].item()


def loss_fn(model, x, y, weight):
    logits, penalty = model(x)
    task = F.cross_entropy(logits, y)
    return SimpleNamespace(task=task, total=task + weight * penalty, penalty=penalty)


def main():
    args = options()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    model = MoENet()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=args.momentum)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=args.steps)
    train_x, train_y = make_data(6000, seed=1)
    valid = make_data(900, seed=2)
    order = torch.Generator().manual_seed(args.seed)
    local = args.global_batch // world
    trace = []
    for step in range(args.steps):
        rows = torch.randint(0, len(train_y), (args.global_batch,), generator=order)
        mine = rows[rank * local:(rank + 1) * local]
        optimizer.zero_grad(set_to_none=False)
        out = loss_fn(model, train_x[mine], train_y[mine], args.balance)
        out.total.backward()
        for p in model.parameters():
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        synchronize_gradients(model)
        norm = clip(model, args.clip)
        optimizer.step()
        schedule.step()
        if step % 15 == 0 or step == args.steps - 1:
            value = out.task.detach().clone()
            dist.all_reduce(value)
            acc = accuracy(model, *valid)
            trace.append({"step": step, "loss": value.item() / world, "norm": norm, "accuracy": acc})
            if rank == 0:
                print(f"step {step} loss {trace[-1]['loss']:.4f} norm {norm:.3f} accuracy {acc:.4f}", flush=True)
    if rank == 0:
        os.makedirs(os.path.dirname(args.log) or ".", exist_ok=True)
        with open(args.log, "w") as fh:
            json.dump(trace, fh)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
