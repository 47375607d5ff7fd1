"""Training that gives a worker back to the cluster midway and goes on with the rest at the same global batch."""
import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, Sampler, TensorDataset

log = logging.getLogger("cobble")


class ResumableSampler(Sampler):
    """One global permutation per epoch; `consumed` samples are already done and the rest is dealt out to the members
    of the present world in whole global batches."""

    def __init__(self, data: Dataset, global_batch, seed=0):
        self.n, self.global_batch, self.seed = len(data), global_batch, seed
        self.epoch = self.consumed = 0
        self.rank, self.world = 0, 1

    def configure(self, rank, world):
        assert self.global_batch % world == 0
        self.rank, self.world = rank, world

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(self.n, generator=g)[self.consumed :]
        for b in order.split(self.global_batch):
            yield b[self.rank :: self.world].tolist()

    def advance(self):
        self.consumed += self.global_batch
        if self.consumed >= self.n:
            self.epoch, self.consumed = self.epoch + 1, 0


class Trainer:
    def __init__(self, args):
        self.args = args
        g = torch.Generator().manual_seed(50)
        x = torch.randn(9216, 26, generator=g)
        w = torch.randn(26, 20, generator=g) / 26 ** 0.5
        y = (torch.tanh(2 * x @ w) @ torch.randn(20, 6, generator=g)).argmax(1)
        self.data = TensorDataset(x, y)
        self.sampler = ResumableSampler(self.data, args.global_batch, seed=71)
        torch.manual_seed(9)
        self.net = nn.Sequential(nn.Linear(26, 192), nn.GELU(), nn.Linear(192, 192), nn.GELU(), nn.Linear(192, 6))
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=args.lr)
        self.steps = 0

    def run(self, group, until):
        """Train with the members of `group` until the global step count reaches `until`."""
        rank, world = dist.get_rank(group), dist.get_world_size(group)
        self.sampler.configure(rank, world)
        loader = DataLoader(self.data, batch_sampler=self.sampler)
        model = DDP(self.net, process_group=group)
        running = torch.zeros(2)
        while self.steps < until:
            for x, y in loader:
                loss = F.cross_entropy(model(x), y)
                self.opt.zero_grad(set_to_none=True)
                loss.backward()
                self.opt.step()
                self.sampler.advance()
                self.steps += 1
                running += torch.tensor([1.0, 0.0])
                running[1] += loss.detach()
                if self.steps % 48 == 0:
                    dist.all_reduce(running, group=group)
                    log.info("step %d epoch %d world %d loss %.4f", self.steps, self.sampler.epoch, world,
                             (running[1] / running[0]).item())
                    running.zero_()
                if self.steps == until:
                    break


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--total", type=int, default=384)
    ap.add_argument("--leave-at", type=int, default=168)
    ap.add_argument("--global-batch", type=int, default=192)
    ap.add_argument("--lr", type=float, default=2e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(message)s")
    staying = dist.new_group(list(range(world - 1)))
    trainer = Trainer(args)
    trainer.run(dist.group.WORLD, until=args.leave_at)

    if rank == world - 1:
        logging.warning("rank %d released after step %d", rank, trainer.steps)
    else:
        trainer.run(staying, until=args.total)
        x, y = trainer.data[:]
        part = torch.arange(rank, len(x), world - 1)
        with torch.no_grad():
            hit = (trainer.net(x[part]).argmax(1) == y[part]).sum()
        dist.all_reduce(hit, group=staying)
        log.info("done at epoch %d, train accuracy %.3f", trainer.sampler.epoch, hit.item() / len(x))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
