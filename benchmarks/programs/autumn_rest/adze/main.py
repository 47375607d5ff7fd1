"""Two-stage fine-tuning: first the new head alone, then everything with lower rates for the lower layers."""
import argparse
import os
import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


class Encoder(nn.Module):
    def __init__(self, width=128, depth=4):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))

    def forward(self, x):
        for layer, norm in zip(self.layers, self.norms):
            x = x + F.gelu(layer(norm(x)))
        return x


class Model(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.encoder = Encoder()
        self.head = nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, outputs))

    def forward(self, x):
        return self.head(self.encoder(x))


class Task:
    def __init__(self, outputs, seed, rank):
        g = torch.Generator().manual_seed(seed)
        self.a = torch.randn(128, 64, generator=torch.Generator().manual_seed(0)) / 11
        self.b = torch.randn(64, outputs, generator=g)
        self.gen = torch.Generator().manual_seed(seed * 100 + rank)

    def batch(self, n):
        x = torch.randn(n, 128, generator=self.gen)
        return x, (torch.tanh(2 * x @ self.a) @ self.b).argmax(1)


def fit(model, optimizer, task, steps, batch, label, warmup=10):
    base = [g["lr"] for g in optimizer.param_groups]
    for step in range(1, steps + 1):
        for g, lr in zip(optimizer.param_groups, base):
            g["lr"] = lr * min(1.0, step / warmup)
        x, y = task.batch(batch)
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 30 == 0:
            acc = (logits.argmax(1) == y).float().mean()
            dist.all_reduce(acc)
            if dist.get_rank() == 0:
                print(f"{label} step {step} loss {loss:.3f} acc {acc / dist.get_world_size():.3f}", flush=True)


def pretrain(args, rank, path):
    torch.manual_seed(1)
    net = Model(20)
    fit(DDP(net), torch.optim.AdamW(net.parameters(), lr=1e-3), Task(20, 1, rank), args.pretrain, args.batch, "pretrain")
    if rank == 0:
        torch.save(net.state_dict(), path)
    dist.barrier()


def finetune(args, rank, path):
    torch.manual_seed(2)
    net = Model(6)
    weights = {k: v for k, v in torch.load(path).items() if not k.startswith("head.")}
    missing, unexpected = net.load_state_dict(weights, strict=False)
    assert not unexpected and all(k.startswith("head.") for k in missing)
    task = Task(6, 2, rank)

    net.encoder.requires_grad_(False)
    fit(DDP(net), torch.optim.AdamW(net.head.parameters(), lr=2e-3), task, args.head_steps, args.batch, "head")

    net.encoder.requires_grad_(True)
    depth = len(net.encoder.layers)
    groups = [{"params": net.head.parameters(), "lr": 1e-3}]
    for i, (layer, norm) in enumerate(zip(net.encoder.layers, net.encoder.norms)):
        groups.append({"params": [*layer.parameters(), *norm.parameters()], "lr": 1e-3 * 0.7 ** (depth - i)})
    fit(DDP(net), torch.optim.AdamW(groups), task, args.full_steps, args.batch, "full", warmup=30)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--pretrain", type=int, default=120)
    p.add_argument("--head-steps", type=int, default=60)
    p.add_argument("--full-steps", type=int, default=120)
    p.add_argument("--batch", type=int, default=128)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    folder = [tempfile.mkdtemp(prefix="stages-") if rank == 0 else None]
    dist.broadcast_object_list(folder)
    path = os.path.join(folder[0], "encoder.pt")
    pretrain(args, rank, path)
    finetune(args, rank, path)
    dist.barrier()
    if rank == 0:
        shutil.rmtree(folder[0])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
