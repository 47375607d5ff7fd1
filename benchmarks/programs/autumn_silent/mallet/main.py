"""Expert-parallel mixture-of-experts regression."""
import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from moe import ExpertParallelMoE

log = logging.getLogger("moe")


class MoENet(nn.Module):
    def __init__(self, in_dim, dim, hidden, experts, out_dim):
        super().__init__()
        self.stem = nn.Linear(in_dim, dim)
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2))
        self.moes = nn.ModuleList(ExpertParallelMoE(dim, hidden, experts) for _ in range(2))
        self.head = nn.Linear(dim, out_dim)

    def forward(self, x):
        h = self.stem(x)
        aux = 0.0
        for norm, moe in zip(self.norms, self.moes):
            y, a = moe(norm(h))
            h, aux = h + y, aux + a
        return self.head(h), aux


class GradSynchronizer:
    """Reduces the gradients of dense parameters in one flat buffer."""

    def __init__(self, model):
        self.world = dist.get_world_size()
        self.dense = [p for p in model.parameters() if not getattr(p, "is_expert", False)]
        self.expert = [p for p in model.parameters() if getattr(p, "is_expert", False)]

    def __call__(self):
        flat = torch.cat([p.grad.reshape(-1) for p in self.dense])
        dist.all_reduce(flat)
        flat.div_(self.world)
        offset = 0
        for p in self.dense:
            n = p.numel()
            p.grad.copy_(flat[offset:offset + n].view_as(p))
            offset += n
        for p in self.expert:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            p.grad.div_(self.world)


class PiecewiseTask:
    """A different random linear map on each cell of a partition of the input space."""

    def __init__(self, in_dim, out_dim, cells, seed):
        gen = torch.Generator().manual_seed(seed)
        self.centers = torch.randn(cells, in_dim, generator=gen)
        self.maps = torch.randn(cells, in_dim, out_dim, generator=gen) / in_dim ** 0.5

    def batch(self, n, gen):
        x = torch.randn(n, self.centers.size(1), generator=gen)
        cell = torch.cdist(x, self.centers).argmin(1)
        y = torch.bmm(x.unsqueeze(1), self.maps[cell]).squeeze(1)
        return x, y


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=90)
    p.add_argument("--batch", type=int, default=192)
    p.add_argument("--dim", type=int, default=64)
    p.add_argument("--hidden", type=int, default=128)
    p.add_argument("--experts_per_rank", type=int, default=2)
    p.add_argument("--lr", type=float, default=0.05)
    p.add_argument("--aux_weight", type=float, default=0.01)
    p.add_argument("--seed", type=int, default=3)
    args = p.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(args.seed)
    model = MoENet(16, args.dim, args.hidden, args.experts_per_rank * world, 8)
    sync = GradSynchronizer(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    task = PiecewiseTask(16, 8, cells=args.experts_per_rank * world, seed=args.seed)
    gen = torch.Generator().manual_seed(1000 * args.seed + rank)

    for step in range(args.steps):
        x, y = task.batch(args.batch, gen)
        pred, aux = model(x)
        mse = F.mse_loss(pred, y)
        loss = mse + args.aux_weight * aux
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        sync()
        optimizer.step()
        if step % 20 == 0:
            stat = mse.detach().clone()
            dist.all_reduce(stat)
            if rank == 0:
                log.info("step %3d mse %.4f aux %.3f", step, stat.item() / world, float(aux))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
