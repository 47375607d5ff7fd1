"""Forecasting transformer with a (data, tensor) device mesh built from DTensor styles."""
import argparse
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import DataLoader, Dataset, DistributedSampler


@dataclass
class Plan:
    data_parallel: int = 1
    tensor_parallel: int = 2
    epochs: int = 3
    batch_size: int = 32
    lr: float = 1e-3
    weight_decay: float = 0.01
    seed: int = 29


class Waves(Dataset):
    """Windows of noisy sums of sines together with the next eight values."""

    def __init__(self, n, seed, history=32, horizon=8):
        g = torch.Generator().manual_seed(seed)
        t = torch.arange(history + horizon).float()
        f = 0.05 + 0.4 * torch.rand(n, 2, 1, generator=g)
        p = 6.28 * torch.rand(n, 2, 1, generator=g)
        a = 0.5 + torch.rand(n, 2, 1, generator=g)
        series = (a * torch.sin(f * t + p)).sum(1) + 0.05 * torch.randn(n, history + horizon, generator=g)
        self.past, self.future = series[:, :history], series[:, history:]

    def __len__(self):
        return len(self.past)

    def __getitem__(self, i):
        return self.past[i], self.future[i]


class Attention(nn.Module):
    def __init__(self, dim, head_dim=16):
        super().__init__()
        self.head_dim = head_dim
        self.wq = nn.Linear(dim, dim)
        self.wk = nn.Linear(dim, dim)
        self.wv = nn.Linear(dim, dim)
        self.wo = nn.Linear(dim, dim)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (w(x).view(b, t, -1, self.head_dim).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        return self.wo(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, -1))


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.attn_norm = nn.LayerNorm(dim)
        self.attn = Attention(dim)
        self.ffn_norm = nn.LayerNorm(dim)
        self.w1 = nn.Linear(dim, 4 * dim)
        self.w2 = nn.Linear(4 * dim, dim)

    def forward(self, x):
        x = x + self.attn(self.attn_norm(x))
        return x + self.w2(F.gelu(self.w1(self.ffn_norm(x))))


class Forecaster(nn.Module):
    def __init__(self, dim=64, layers=2, patch=4, history=32, horizon=8):
        super().__init__()
        self.patch = patch
        self.embed = nn.Linear(patch, dim)
        self.place = nn.Parameter(0.02 * torch.randn(history // patch, dim))
        self.blocks = nn.ModuleList(Block(dim) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        self.out = nn.Linear(dim, horizon)

    def forward(self, past):
        x = self.embed(past.unflatten(1, (-1, self.patch))) + self.place
        for block in self.blocks:
            x = block(x)
        return self.out(self.norm(x).mean(1))


def apply_tensor_parallel(model, mesh):
    style = {"attn.wq": ColwiseParallel(), "attn.wk": ColwiseParallel(), "attn.wv": ColwiseParallel(),
             "attn.wo": RowwiseParallel(), "w1": ColwiseParallel(), "w2": RowwiseParallel()}
    for block in model.blocks:
        parallelize_module(block, mesh, style)


def average_over_data_axis(model, group, size):
    if size == 1:
        return
    for p in model.parameters():
        grad = p.grad.to_local() if isinstance(p.grad, DTensor) else p.grad
        dist.all_reduce(grad, group=group)
        grad.div_(size)


class Session:
    def __init__(self, plan):
        self.plan = plan
        self.mesh = init_device_mesh("cpu", (plan.data_parallel, plan.tensor_parallel), mesh_dim_names=("dp", "tp"))
        self.dp, self.tp = self.mesh["dp"], self.mesh["tp"]
        torch.manual_seed(plan.seed)
        self.model = Forecaster()
        apply_tensor_parallel(self.model, self.tp)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=plan.lr, weight_decay=plan.weight_decay,
                                           foreach=False)
        self.train = self.loader(Waves(768, seed=1), shuffle=True)
        self.valid = Waves(256, seed=2)

    def loader(self, dataset, shuffle):
        sampler = DistributedSampler(dataset, num_replicas=self.dp.size(), rank=self.dp.get_local_rank(),
                                     shuffle=shuffle, seed=self.plan.seed, drop_last=True)
        return DataLoader(dataset, batch_size=self.plan.batch_size, sampler=sampler, drop_last=True)

    def epoch(self, index):
        self.train.sampler.set_epoch(index)
        total = 0.0
        for past, future in self.train:
            loss = F.mse_loss(self.model(past), future)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            average_over_data_axis(self.model, self.dp.get_group(), self.plan.data_parallel)
            self.optimizer.step()
            total += loss.item()
        return total / len(self.train)

    @torch.no_grad()
    def test(self):
        self.model.eval()
        errors = [F.l1_loss(self.model(p), f).item() for p, f in DataLoader(self.valid, batch_size=64)]
        self.model.train()
        return sum(errors) / len(errors)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--dp", type=int, default=1)
    ap.add_argument("--epochs", type=int, default=Plan.epochs)
    ns = ap.parse_args()
    dist.init_process_group("gloo")
    plan = Plan(data_parallel=ns.dp, tensor_parallel=dist.get_world_size() // ns.dp, epochs=ns.epochs)
    session = Session(plan)
    for e in range(plan.epochs):
        start = time.perf_counter()
        loss = session.epoch(e)
        error = session.test()
        if dist.get_rank() == 0:
            print(f"epoch {e} loss {loss:.4f} error {error:.4f} {time.perf_counter() - start:.1f}s", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
