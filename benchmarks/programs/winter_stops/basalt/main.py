"""Multi-task pretraining on a mixture of annotation kinds."""
import argparse
import logging
import time

import torch
import torch.distributed as dist

from tasks import KINDS, MixtureShard, MultiTaskNet
from tracking import MetricWindow

log = logging.getLogger("mixture")


class GradSync:
    """Averages gradients through one flat buffer; heads without samples contribute zeros."""

    def __init__(self, params, world):
        self.params = list(params)
        self.world = world
        self.flat = torch.zeros(sum(p.numel() for p in self.params))

    def __call__(self):
        at = 0
        for p in self.params:
            piece = self.flat[at : at + p.numel()]
            piece.zero_() if p.grad is None else piece.copy_(p.grad.flatten())
            at += p.numel()
        dist.all_reduce(self.flat)
        self.flat /= self.world
        at = 0
        for p in self.params:
            p.grad = self.flat[at : at + p.numel()].view_as(p).clone()
            at += p.numel()


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--samples", type=int, default=16_000)
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--dim", type=int, default=64)
    p.add_argument("--hidden", type=int, default=384)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--log-every", type=int, default=25)
    p.add_argument("--seed", type=int, default=3)
    return p.parse_args()


def main():
    args = parse()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(asctime)s %(message)s")

    torch.manual_seed(args.seed)
    net = MultiTaskNet(args.dim, args.hidden)
    opt = torch.optim.AdamW(net.parameters(), lr=args.lr)
    sync = GradSync(net.parameters(), world)
    shard = MixtureShard(rank, args.samples, args.dim, args.seed)
    window = MetricWindow([f"acc/{k}" for k in KINDS])
    start = time.time()

    for step, (x, kinds, y) in enumerate(shard.batches(args.batch), 1):
        losses, hits = net(x, kinds, y)
        loss = sum(losses.values()) / len(losses)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        sync()
        opt.step()
        for name, hit in hits.items():
            window.add(f"acc/{name}", hit)
        if step % args.log_every == 0:
            report = window.flush()
            line = "  ".join(f"{k} {v:.3f}" for k, v in report.items())
            log.info("step %4d  loss %.4f  %s  %.1fs", step, loss.item(), line, time.time() - start)

    dist.barrier()
    log.info("done after %d steps", step)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
