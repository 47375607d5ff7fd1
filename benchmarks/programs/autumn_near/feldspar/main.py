"""Expert-parallel classifier. Dense gradients are summed over ranks; every rank contributes its share of the global loss."""
import argparse
import logging

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dfn
import torch.nn as nn
import torch.nn.functional as F

log = logging.getLogger("experts")


class CapacityMoE(nn.Module):
    def __init__(self, dim, hidden, per_rank, capacity_factor):
        super().__init__()
        self.world, self.rank = dist.get_world_size(), dist.get_rank()
        self.per_rank, self.total = per_rank, per_rank * self.world
        self.cf = capacity_factor
        self.router = nn.Linear(dim, self.total)
        g = torch.Generator().manual_seed(60 + self.rank)
        self.w1 = nn.Parameter(torch.randn(per_rank, dim, hidden, generator=g) / dim ** 0.5)
        self.w2 = nn.Parameter(torch.randn(per_rank, hidden, dim, generator=g) / hidden ** 0.5)

    def forward(self, x):
        n, d = x.shape
        cap = int(self.cf * n / self.total)
        prob = self.router(x).softmax(-1)
        p, e = prob.max(-1)
        onehot = F.one_hot(e, self.total)
        pos = (onehot.cumsum(0) * onehot).sum(-1) - 1
        keep = pos < cap
        slot = (e * cap + pos)[keep]
        buf = x.new_zeros(self.total * cap, d).index_copy(0, slot, x[keep])
        got = dfn.all_to_all_single(torch.empty_like(buf), buf)
        got = got.view(self.world, self.per_rank, cap, d).transpose(0, 1).reshape(self.per_rank, -1, d)
        out = torch.bmm(F.gelu(torch.bmm(got, self.w1)), self.w2)
        out = out.view(self.per_rank, self.world, cap, d).transpose(0, 1).reshape(-1, d).contiguous()
        back = dfn.all_to_all_single(torch.empty_like(out), out)
        y = torch.zeros_like(x)
        y[keep] = back[slot] * p[keep, None]
        aux = self.total * (onehot.float().mean(0) * prob.mean(0)).sum()
        return x + y, aux


class Model(nn.Module):
    def __init__(self, d_in, dim, classes):
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(d_in, dim), nn.LayerNorm(dim))
        self.moe = CapacityMoE(dim, 160, 2, 1.5)
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        h, aux = self.moe(self.stem(x))
        return self.head(h), aux


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=160)
    p.add_argument("--global-batch", type=int, default=512)
    p.add_argument("--lr", type=float, default=0.15)
    args = p.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(12)
    model = Model(32, 80, 10)
    dense = [q for n, q in model.named_parameters() if not n.startswith("moe.w")]
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    rule = torch.randn(4, 32, 10, generator=torch.Generator().manual_seed(77))
    gen = torch.Generator().manual_seed(rank + 300)
    n = args.global_batch // world

    for step in range(1, args.steps + 1):
        x = torch.randn(n, 32, generator=gen)
        y = torch.einsum("nd,ndc->nc", x, rule[(x[:, 0] > 0).long() * 2 + (x[:, 1] > 0).long()]).argmax(-1)
        logits, aux = model(x)
        loss = F.cross_entropy(logits, y, reduction="sum") / args.global_batch + 0.01 * aux / world
        opt.zero_grad(set_to_none=True)
        loss.backward()
        for q in dense:
            dist.all_reduce(q.grad)
        nn.utils.clip_grad_value_(model.parameters(), 1.0)
        opt.step()
        if step % 20 == 0:
            whole = loss.detach().clone()
            dist.all_reduce(whole)
            if rank == 0:
                log.info("step %d loss %.4f", step, whole.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
