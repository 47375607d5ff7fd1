import argparse
import logging
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from wire import Wire
from trees import TreeStream

log = logging.getLogger("red_river")


class Lower(nn.Module):
    """Embeds nodes and mixes each with its parent."""

    def __init__(self, kinds, dim):
        super().__init__()
        self.kind = nn.Embedding(kinds, dim)
        self.up = nn.Linear(2 * dim, dim)

    def forward(self, kinds, parents):
        h = self.kind(kinds)
        for _ in range(2):
            h = torch.tanh(self.up(torch.cat([h, h[parents]], -1)))
        return h


class Upper(nn.Module):
    def __init__(self, dim, classes):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, classes))

    def forward(self, h):
        return self.f(h)


class TwoStage:
    def __init__(self, args):
        self.args = args
        self.rank = dist.get_rank()
        torch.manual_seed(args.seed + self.rank)
        self.wire = Wire(peer=1 - self.rank)
        self.trees = TreeStream(args.kinds, args.classes, args.seed)
        self.module = Lower(args.kinds, args.dim) if self.rank == 0 else Upper(args.dim, args.classes)
        self.opt = torch.optim.AdamW(self.module.parameters(), lr=args.lr)

    def send_side(self, step):
        trees = self.trees.batch(step)
        self.wire.header(len(trees), sum(t.size for t in trees))
        outs = []
        for t in trees:
            h = self.module(t.kinds, t.parents)
            self.wire.give(h, extra=t.labels)
            outs.append(h)
        for h in outs:
            h.backward(self.wire.take()[0])

    def receive_side(self):
        count, nodes = self.wire.read_header()
        total, kept = 0.0, []
        for _ in range(count):
            h, labels = self.wire.take()
            h.requires_grad_()
            loss = F.cross_entropy(self.module(h), labels, reduction="sum") / nodes
            loss.backward()
            total += loss.item()
            kept.append(h.grad)
        for g in kept:
            self.wire.give(g)
        return total

    def fit(self):
        began = time.perf_counter()
        for step in range(self.args.steps):
            self.opt.zero_grad()
            if self.rank == 0:
                self.send_side(step)
            else:
                loss = self.receive_side()
                if (step + 1) % 40 == 0:
                    log.info("step %d loss %.4f (%.1fs)", step + 1, loss, time.perf_counter() - began)
            self.opt.step()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--kinds", type=int, default=30)
    ap.add_argument("--classes", type=int, default=6)
    ap.add_argument("--dim", type=int, default=48)
    ap.add_argument("--steps", type=int, default=200)
    ap.add_argument("--lr", type=float, default=4e-3)
    ap.add_argument("--seed", type=int, default=58)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    if dist.get_world_size() != 2:
        raise SystemExit("two stages need two ranks")
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO, format=f"stage{dist.get_rank()} %(message)s")
    job = TwoStage(args)
    job.fit()
    log.info("messages %d", job.wire.messages)
    sizes = [None, None]
    dist.all_gather_object(sizes, sum(p.numel() for p in job.module.parameters()))
    if job.rank == 0:
        log.info("parameters per stage %s", sizes)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
