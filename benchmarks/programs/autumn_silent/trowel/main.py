"""Pipeline over three processes: each one holds other layers of the network."""
import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn.functional as F

from stages import FillDrain, build_stage

log = logging.getLogger("pipe")


class Source:
    """Deterministic sample stream; every stage draws the same batches and uses its part of them."""

    def __init__(self, in_dim, classes, seed):
        self.gen = torch.Generator().manual_seed(seed)
        self.proto = torch.randn(classes, 2, in_dim, generator=self.gen)

    def next(self, n):
        y = torch.randint(0, self.proto.size(0), (n,), generator=self.gen)
        mode = torch.randint(0, 2, (n,), generator=self.gen)
        x = self.proto[y, mode] + 1.1 * torch.randn(n, self.proto.size(2), generator=self.gen)
        return x, y


def clip_global(params, max_norm):
    square = sum(p.grad.pow(2).sum() for p in params)
    dist.all_reduce(square)
    norm = square.sqrt()
    scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for p in params:
        p.grad.mul_(scale)
    return norm


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=130)
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--micro", type=int, default=4)
    p.add_argument("--in_dim", type=int, default=32)
    p.add_argument("--dim", type=int, default=64)
    p.add_argument("--classes", type=int, default=10)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--seed", type=int, default=3)
    args = p.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    dist.init_process_group("gloo")
    stage, stages = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(args.seed * 10 + stage)
    module = build_stage(stage, stages, args.in_dim, args.dim, 1 + (stage == 1), args.classes)
    params = list(module.parameters())
    optimizer = torch.optim.AdamW(params, lr=args.lr)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3 * args.lr, total_steps=args.steps)
    pipe = FillDrain(module, stage, stages, args.dim)
    source = Source(args.in_dim, args.classes, args.seed)

    for step in range(args.steps):
        x, y = source.next(args.batch)
        optimizer.zero_grad(set_to_none=True)
        loss = pipe.run(x.chunk(args.micro), y.chunk(args.micro), F.cross_entropy)
        norm = clip_global(params, 1.0)
        optimizer.step()
        scheduler.step()
        if step % 20 == 0 and stage == stages - 1:
            log.info("step %3d loss %.4f grad norm %.3f", step, loss.item(), norm.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
