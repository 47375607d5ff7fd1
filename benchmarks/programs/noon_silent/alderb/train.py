"""Mixture-of-experts regressor; every process owns its own experts."""
import argparse
import math

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, out_splits, in_splits):
        ctx.splits = (in_splits, out_splits)
        out = x.new_empty(sum(out_splits), x.size(1))
        dist.all_to_all_single(out, x.contiguous(), out_splits, in_splits)
        return out

    @staticmethod
    def backward(ctx, g):
        out_splits, in_splits = ctx.splits
        out = g.new_empty(sum(out_splits), g.size(1))
        dist.all_to_all_single(out, g.contiguous(), out_splits, in_splits)
        return out, None, None


class Expert(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.up, self.down = nn.Linear(dim, hidden), nn.Linear(hidden, dim)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class ExpertParallelMoE(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.world = dist.get_world_size()
        self.router = nn.Linear(dim, self.world)
        self.expert = Expert(dim, hidden)

    def forward(self, x):
        prob = self.router(x).softmax(-1)
        weight, dest = prob.max(-1)
        order = torch.argsort(dest, stable=True)
        send = torch.bincount(dest, minlength=self.world)
        recv = torch.empty_like(send)
        dist.all_to_all_single(recv, send)
        send, recv = send.tolist(), recv.tolist()
        mine = self.expert(_AllToAll.apply(x[order], recv, send))
        back = _AllToAll.apply(mine, send, recv)
        out = torch.empty_like(back)
        out[order] = back
        load = F.one_hot(dest, self.world).float().mean(0)
        return out * weight[:, None], self.world * (load * prob.mean(0)).sum()


class MoENet(nn.Module):
    def __init__(self, in_dim, dim=96, hidden=384, depth=2):
        super().__init__()
        self.embed = nn.Linear(in_dim, dim)
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(depth))
        self.moes = nn.ModuleList(ExpertParallelMoE(dim, hidden) for _ in range(depth))
        self.out = nn.Linear(dim, 1)

    def forward(self, x):
        h, aux = torch.tanh(self.embed(x)), 0.0
        for norm, moe in zip(self.norms, self.moes):
            y, a = moe(norm(h))
            h, aux = h + y, aux + a
        return self.out(h).squeeze(-1), aux


def is_expert(name):
    return ".expert." in name


def build_model(in_dim, seed):
    torch.manual_seed(seed)
    model = MoENet(in_dim)
    gen = torch.Generator().manual_seed(seed + 100 + dist.get_rank())
    for name, p in model.named_parameters():
        if is_expert(name) and p.dim() == 2:
            bound = 1 / math.sqrt(p.size(1))
            with torch.no_grad():
                p.uniform_(-bound, bound, generator=gen)
    return model


def reduce_gradients(model):
    world = dist.get_world_size()
    dense = [p for n, p in model.named_parameters() if not is_expert(n)]
    flat = torch.cat([p.grad.reshape(-1) for p in dense])
    dist.all_reduce(flat)
    flat /= world
    offset = 0
    for p in dense:
        p.grad.copy_(flat[offset:offset + p.numel()].view_as(p))
        offset += p.numel()
    for n, p in model.named_parameters():
        if is_expert(n) and p.grad is not None:
            p.grad /= world


def clip_gradients(model, max_norm):
    named = [(n, p) for n, p in model.named_parameters() if p.grad is not None]
    dense_sq = sum(p.grad.pow(2).sum() for n, p in named if not is_expert(n))
    expert_sq = sum((p.grad.pow(2).sum() for n, p in named if is_expert(n)), torch.zeros(()))
    dist.all_reduce(expert_sq)
    total = (dense_sq + expert_sq).sqrt()
    coef = (max_norm / (total + 1e-6)).clamp(max=1.0)
    for _, p in named:
        p.grad.mul_(coef)
    return total


class Regimes:
    """Piecewise target with a handful of regimes, one stream per process."""

    def __init__(self, in_dim, seed):
        g = torch.Generator().manual_seed(4)
        self.centres = torch.randn(6, in_dim, generator=g) * 2
        self.coef = torch.randn(6, in_dim, generator=g)
        self.gen = torch.Generator().manual_seed(seed)

    def batch(self, n):
        k = torch.randint(0, 6, (n,), generator=self.gen)
        z = torch.randn(n, self.centres.size(1), generator=self.gen)
        x = self.centres[k] + z
        y = (z * self.coef[k]).sum(1) * 0.4 + torch.randn(n, generator=self.gen) * 0.05
        return x, y


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=100)
    ap.add_argument("--batch", type=int, default=1024)
    ap.add_argument("--lr", type=float, default=0.05)
    ap.add_argument("--max-norm", type=float, default=1.0)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    in_dim = 24
    model = build_model(in_dim, seed=21)
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    data = Regimes(in_dim, seed=1000 + rank)

    for step in range(args.steps):
        x, y = data.batch(args.batch)
        pred, aux = model(x)
        loss = F.mse_loss(pred, y)
        opt.zero_grad()
        (loss + 0.5 * aux).backward()
        reduce_gradients(model)
        norm = clip_gradients(model, args.max_norm)
        opt.step()
        if step % 20 == 0 or step == args.steps - 1:
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            if rank == 0:
                print(f"step {step} loss {mean.item() / dist.get_world_size():.4f} gnorm {norm.item():.3f}", flush=True)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
