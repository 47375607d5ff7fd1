"""Hybrid sharding: parameters sharded inside a group and replicated between groups."""
import argparse
import math
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Waves(Dataset):
    """Noisy mixtures of sines; the task is to predict the next patch."""

    def __init__(self, n, length=96, seed=0):
        g = torch.Generator().manual_seed(seed)
        t = torch.arange(length).float()
        freq = torch.rand(n, 2, 1, generator=g) * 0.25 + 0.03
        phase = torch.rand(n, 2, 1, generator=g) * 2 * math.pi
        amp = torch.rand(n, 2, 1, generator=g) + 0.3
        clean = (amp * torch.sin(freq * t + phase)).sum(1)
        self.x = clean + 0.03 * torch.randn(n, length, generator=g)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i]


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.ff = nn.Sequential(nn.Linear(dim, 2 * dim), nn.SiLU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (z.view(b, t, self.heads, -1).transpose(1, 2) for z in self.qkv(self.n1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
        x = x + self.out(y)
        return x + self.ff(self.n2(x))


class Forecaster(nn.Module):
    def __init__(self, patch=8, dim=48, heads=4, depth=3, tokens=12):
        super().__init__()
        self.patch = patch
        self.embed = nn.Linear(patch, dim)
        self.pos = nn.Parameter(torch.randn(tokens, dim) * 0.02)
        self.layers = nn.ModuleList(Layer(dim, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, patch)

    def forward(self, x):
        patches = x.unfold(1, self.patch, self.patch)
        h = self.embed(patches[:, :-1]) + self.pos[: patches.shape[1] - 1]
        for layer in self.layers:
            h = layer(h)
        return self.head(self.norm(h)).clone(), patches[:, 1:].contiguous()


class Trainer:
    def __init__(self, args):
        self.args = args
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.mesh = init_device_mesh("cpu", (self.world // args.shard, args.shard),
                                     mesh_dim_names=("replicate", "shard"))
        torch.manual_seed(args.seed)
        self.model = Forecaster()
        for layer in self.model.layers:
            fully_shard(layer, mesh=self.mesh)
        fully_shard(self.model, mesh=self.mesh)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=args.lr, weight_decay=0.02)
        self.train_set, self.held_set = Waves(1536, seed=1), Waves(256, seed=2)
        self.sampler = DistributedSampler(self.train_set, seed=args.seed, drop_last=True)
        self.loader = DataLoader(self.train_set, batch_size=args.batch, sampler=self.sampler, drop_last=True)
        held_sampler = DistributedSampler(self.held_set, shuffle=False)
        self.held = DataLoader(self.held_set, batch_size=64, sampler=held_sampler)
        total = args.epochs * len(self.loader)
        self.sched = torch.optim.lr_scheduler.CosineAnnealingLR(self.opt, total)

    def epoch(self, e):
        self.model.train()
        self.sampler.set_epoch(e)
        for i, x in enumerate(self.loader):
            pred, target = self.model(x)
            loss = F.smooth_l1_loss(pred, target)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.opt.step()
            self.sched.step()
            self.opt.zero_grad(set_to_none=True)
            if i % 12 == 0:
                norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
                if self.rank == 0:
                    print(f"epoch {e} step {i} loss {loss.item():.4f} norm {norm.item():.3f}", flush=True)

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        s = torch.zeros(2)
        for x in self.held:
            pred, target = self.model(x)
            s += torch.tensor([F.mse_loss(pred, target, reduction="sum").item(), float(target.numel())])
        dist.all_reduce(s)
        return (s[0] / s[1]).item()

    def save(self, path):
        state = get_model_state_dict(self.model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        if self.rank == 0:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            torch.save(state, path)
        dist.barrier()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--batch", type=int, default=24)
    ap.add_argument("--shard", type=int, default=1)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--seed", type=int, default=8)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    trainer = Trainer(args)
    for e in range(args.epochs):
        trainer.epoch(e)
        mse = trainer.evaluate()
        if trainer.rank == 0:
            print(f"epoch {e} held-out mse {mse:.4f} mesh {tuple(trainer.mesh.shape)}", flush=True)
    trainer.save("runs/fennel/model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
