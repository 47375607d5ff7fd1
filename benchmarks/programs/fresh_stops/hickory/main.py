"""Names, one letter at a time. Trains for as long as the allocation lasts, then stores the result.

    torchrun --nproc-per-node 2 main.py --seconds 6
"""
import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from budget import Allowance
from corpus import alphabet, describe, names, tensorise


class Letters(nn.Module):
    def __init__(self, n, ctx=6, width=24):
        super().__init__()
        self.table = nn.Embedding(n, width)
        self.net = nn.Sequential(nn.Linear(ctx * width, 128), nn.Tanh(), nn.Linear(128, n))

    def forward(self, x):
        return self.net(self.table(x).flatten(1))


class Job:
    def __init__(self, args):
        self.args = args
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        lines = names(args.names, seed=0)
        if self.rank == 0:
            for k, kinds, top in describe(lines):
                print(f"{k}-grams: {kinds} kinds, {top}", flush=True)
        self.x, self.y = tensorise(lines)
        self.allowance = Allowance(args.seconds)
        torch.manual_seed(args.seed)
        self.model = DistributedDataParallel(Letters(len(alphabet())))
        self.optim = torch.optim.AdamW(self.model.parameters(), lr=args.lr)
        self.step = 0

    def order(self):
        """Endless stream of index batches, disjoint between the processes."""
        epoch = 0
        while True:
            g = torch.Generator().manual_seed(self.args.seed + epoch)
            perm = torch.randperm(len(self.x), generator=g)
            usable = len(perm) // (self.world * self.args.batch) * self.world * self.args.batch
            yield from perm[:usable].view(-1, self.world, self.args.batch)[:, self.rank]
            epoch += 1

    def over(self):
        return self.allowance.exhausted()

    def train(self):
        loss = None
        for idx in self.order():
            if self.over():
                break
            loss = nn.functional.cross_entropy(self.model(self.x[idx]), self.y[idx])
            self.optim.zero_grad(set_to_none=True)
            loss.backward()
            self.optim.step()
            self.step += 1
            if self.rank == 0 and self.step % 200 == 0:
                print(f"step {self.step} loss {loss.item():.4f}, {self.allowance.left():.1f}s left", flush=True)

    def store(self):
        dist.barrier()
        if self.rank == 0:
            torch.save({"net": self.model.module.state_dict(), "optim": self.optim.state_dict(), "step": self.step},
                       self.args.out)
            print(f"stored after {self.step} steps", flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=6.0)
    ap.add_argument("--names", type=int, default=9000)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--seed", type=int, default=12)
    ap.add_argument("--out", default="/tmp/letters.pt")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    job = Job(args)
    job.train()
    job.store()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
