"""Tabular forest-cover style classifier with expert-parallel switch layers."""
import argparse
import json
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from switch import SwitchLayer


class CoverNet(nn.Module):
    def __init__(self, features, classes, width, experts, capacity, depth):
        super().__init__()
        self.stem = nn.Linear(features, width)
        self.blocks = nn.ModuleList(
            SwitchLayer(width, 2 * width, experts, capacity, i) for i in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        h, aux = torch.relu(self.stem(x)), 0.0
        for norm, block in zip(self.norms, self.blocks):
            h, b = block(norm(h))
            aux = aux + b
        return self.head(h), aux


def make_table(n, features, classes):
    g = torch.Generator().manual_seed(77)
    centers = torch.randn(3 * classes, features, generator=g) * 1.3
    pick = torch.randint(0, 3 * classes, (n,), generator=g)
    return centers[pick] + torch.randn(n, features, generator=g), pick % classes


def is_expert(p):
    return getattr(p, "expert", False)


def reduce_gradients(model, world):
    """Average the gradients of everything that is replicated."""
    grads = []
    for p in model.parameters():
        if is_expert(p):
            continue
        grads.append(p.grad)
    flat = torch.cat([g.reshape(-1) for g in grads])
    dist.all_reduce(flat)
    flat /= world
    at = 0
    for g in grads:
        g.copy_(flat[at:at + g.numel()].view_as(g))
        at += g.numel()


@torch.no_grad()
def evaluate(model, x, y):
    model.eval()
    tally = torch.zeros(2, dtype=torch.float64)
    for xb, yb in zip(x.split(128), y.split(128)):
        logits, _ = model(xb)
        tally += torch.tensor([(logits.argmax(-1) == yb).sum().item(), len(yb)], dtype=torch.float64)
    dist.all_reduce(tally)
    model.train()
    return (tally[0] / tally[1]).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=120)
    ap.add_argument("--batch", type=int, default=64, help="rows per process")
    ap.add_argument("--lr", type=float, default=0.05)
    ap.add_argument("--experts", type=int, default=4)
    ap.add_argument("--out", default=os.path.join("runs", "cover"))
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(5)
    model = CoverNet(20, 7, 32, args.experts, capacity=args.batch, depth=2)
    for p in model.parameters():
        if not is_expert(p):
            dist.broadcast(p.data, 0)

    x, y = make_table(4096 + 1024, 20, 7)
    train_x, train_y = x[:4096][rank::world], y[:4096][rank::world]
    val_x, val_y = x[4096:][rank::world], y[4096:][rank::world]
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    order = torch.Generator().manual_seed(100 + rank)

    for step in range(args.steps):
        idx = torch.randint(0, len(train_x), (args.batch,), generator=order)
        logits, aux = model(train_x[idx])
        loss = F.cross_entropy(logits, train_y[idx]) + 0.01 * aux
        opt.zero_grad(set_to_none=True)
        loss.backward()
        reduce_gradients(model, world)
        opt.step()
        if step % 20 == 0 or step == args.steps - 1:
            shown = loss.detach().clone()
            dist.all_reduce(shown)
            acc = evaluate(model, val_x, val_y)
            if rank == 0:
                print(f"step {step:4d} loss {shown.item() / world:.4f} val acc {acc:.3f}", flush=True)

    os.makedirs(args.out, exist_ok=True)
    state = model.state_dict()
    torch.save({k: v for k, v in state.items() if ".experts." in k},
               os.path.join(args.out, f"experts_{rank:02d}.pt"))
    if rank == 0:
        torch.save({k: v for k, v in state.items() if ".experts." not in k},
                   os.path.join(args.out, "dense.pt"))
        with open(os.path.join(args.out, "layout.json"), "w") as f:
            json.dump({"experts": args.experts, "world": world}, f)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
