import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

from state import Checkpoint, PositionedSampler


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--rows", type=int, default=960)
    p.add_argument("--batch", type=int, default=24)
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--budget", type=int, default=27, help="steps per session; 0 for no limit")
    p.add_argument("--lr", type=float, default=4e-3)
    p.add_argument("--seed", type=int, default=44)
    p.add_argument("--out", default="out_sinai")
    return p.parse_args()


class MaskedNet(nn.Module):
    def __init__(self, dim, width=80, drop=0.1):
        super().__init__()
        self.inp = nn.Linear(2 * dim, width)
        self.mid = nn.ModuleList(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU(), nn.Dropout(drop))
                                 for _ in range(3))
        self.out = nn.Linear(width, dim)

    def forward(self, x, mask):
        h = self.inp(torch.cat([x * mask, mask], -1))
        for m in self.mid:
            h = h + m(h)
        return self.out(h)


def table(args):
    g = torch.Generator().manual_seed(args.seed)
    z = torch.randn(args.rows + 200, 4, generator=g)
    x = torch.tanh(z @ torch.randn(4, 18, generator=g)) + 0.05 * torch.randn(args.rows + 200, 18, generator=g)
    return x[: args.rows], x[args.rows :]


class Session:
    """Everything that a freshly started job builds."""

    def __init__(self, args):
        self.args = args
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(args.seed)
        x, self.held = table(args)
        self.net = MaskedNet(x.size(1))
        self.model = DDP(self.net)
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=args.lr)
        self.sampler = PositionedSampler(len(x), self.rank, self.world, args.batch, args.seed)
        self.loader = DataLoader(TensorDataset(x), args.batch, sampler=self.sampler,
                                 generator=torch.Generator().manual_seed(args.seed))
        self.sched = torch.optim.lr_scheduler.CosineAnnealingLR(self.opt, args.epochs * self.sampler.batches)
        self.noise = torch.Generator().manual_seed(args.seed * 100 + self.rank)
        torch.manual_seed(args.seed * 10 + self.rank)
        self.step = 0

    def say(self, text):
        if self.rank == 0:
            print(text, flush=True)

    def train(self, ckpt):
        left = self.args.budget or 10 ** 9
        while self.sampler.epoch < self.args.epochs:
            sums = torch.zeros(2)
            for (x,) in self.loader:
                mask = (torch.rand(x.shape, generator=self.noise) > 0.3).float()
                pred = self.model(x, mask)
                loss = ((pred - x).pow(2) * (1 - mask)).sum() / (1 - mask).sum().clamp_min(1)
                self.opt.zero_grad(set_to_none=True)
                loss.backward()
                self.opt.step()
                self.sched.step()
                self.step += 1
                self.sampler.done += 1
                sums += torch.tensor([loss.item(), 1.0])
                left -= 1
                if left == 0:
                    ckpt.save(self)
                    self.say(f"session ends at step {self.step} (epoch {self.sampler.epoch}, batch {self.sampler.done})")
                    return False
            dist.all_reduce(sums)
            self.say(f"epoch {self.sampler.epoch} step {self.step} batches {int(sums[1])} loss {sums[0] / sums[1]:.4f} "
                     f"held {self.evaluate():.5f}")
            self.sampler.epoch += 1
            self.sampler.done = 0
        return True

    @torch.no_grad()
    def evaluate(self):
        self.net.eval()
        g = torch.Generator().manual_seed(5)
        mask = (torch.rand(self.held.shape, generator=g) > 0.3).float()[self.rank :: self.world]
        x = self.held[self.rank :: self.world]
        err = torch.stack([((self.net(x, mask) - x).pow(2) * (1 - mask)).sum(), (1 - mask).sum()])
        dist.all_reduce(err)
        self.net.train()
        return (err[0] / err[1]).item()


def main():
    args = parse()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    ckpt = Checkpoint(args.out)
    finished, sessions = False, 0
    while not finished:
        session = Session(args)
        if ckpt.load(session):
            session.say(f"resumed at step {session.step}")
        finished = session.train(ckpt)
        sessions += 1
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
