"""Sparse mixture-of-experts regressor, expert parallel over the data-parallel ranks."""
import argparse
import logging
import math

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch._utils import _flatten_dense_tensors as flatten, _unflatten_dense_tensors as unflatten

from moe import ExpertParallelFFN, is_expert

log = logging.getLogger("gneiss")


class Net(nn.Module):
    def __init__(self, d_in, dim, hidden, n_experts, depth):
        super().__init__()
        self.stem = nn.Linear(d_in, dim)
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(depth))
        self.blocks = nn.ModuleList(ExpertParallelFFN(dim, hidden, n_experts, seed=100 * (i + 1)) for i in range(depth))
        self.head = nn.Linear(dim, 1)

    def forward(self, x):
        h, aux = self.stem(x), 0.0
        for norm, blk in zip(self.norms, self.blocks):
            y, a = blk(norm(h))
            h, aux = h + y, aux + a
        return self.head(h).squeeze(-1), aux


class GradSync:
    def __init__(self, model, max_norm):
        named = list(model.named_parameters())
        self.dense = [p for n, p in named if not is_expert(n)]
        self.expert = [p for n, p in named if is_expert(n)]
        self.world, self.max_norm = dist.get_world_size(), max_norm

    def __call__(self):
        for p in self.expert:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        grads = [p.grad for p in self.dense]
        experts = [p.grad for p in self.expert]
        torch._foreach_div_(experts, self.world)
        sq = sum(g.square().sum() for g in experts)
        flat = torch.cat([flatten(grads) / self.world, sq.reshape(1)])
        dist.all_reduce(flat)
        for g, v in zip(grads, unflatten(flat[:-1], grads)):
            g.copy_(v)
        norm = (flat[:-1].square().sum() + flat[-1]).sqrt()
        torch._foreach_mul_(grads + experts, (self.max_norm / (norm + 1e-6)).clamp(max=1.0))
        return norm


def make_data(n, d, regimes=8):
    g = torch.Generator().manual_seed(2)
    x = torch.randn(n, d, generator=g)
    anchors = torch.randn(regimes, d, generator=g)
    w = torch.randn(regimes, d, generator=g) / math.sqrt(d)
    which = (x @ anchors.T).argmax(1)
    y = torch.sin(2 * (x * w[which]).sum(1)) + 0.3 * which - 1 + 0.05 * torch.randn(n, generator=g)
    return x, y


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--global-batch", type=int, default=256)
    ap.add_argument("--experts", type=int, default=4)
    ap.add_argument("--lr", type=float, default=2e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(message)s")
    x, y = make_data(16_384, 24)
    torch.manual_seed(0)
    model = Net(24, 96, 192, args.experts, depth=2)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    sync = GradSync(model, max_norm=1.0)
    per_epoch = len(x) // args.global_batch

    for epoch in range(args.epochs):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
        total = torch.zeros(())
        for b in order.split(args.global_batch):
            idx = b[rank::world]
            pred, aux = model(x[idx])
            mse = F.mse_loss(pred, y[idx])
            opt.zero_grad(set_to_none=True)
            (mse + 0.01 * aux).backward()
            norm = sync()
            opt.step()
            total += mse.detach()
        dist.all_reduce(total, op=dist.ReduceOp.AVG)
        log.info("epoch %d mse %.5f grad norm %.3f", epoch, total.item() / per_epoch, norm.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
