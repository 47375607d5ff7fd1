import logging
import os

import torch
import torch.distributed as dist
from torch import nn

logger = logging.getLogger("moei.loop")


def sensor_windows(n, width, seed):
    g = torch.Generator().manual_seed(seed)
    t = torch.linspace(0, 1, width)
    freq = torch.randint(1, 7, (n, 1), generator=g).float()
    phase = torch.rand(n, 1, generator=g) * 6.283
    slope = torch.randn(n, 1, generator=g) * 0.3
    return torch.sin(6.283 * freq * t + phase) + slope * t


class Denoiser(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(width, 128), nn.GELU(), nn.Linear(128, 16))
        self.dec = nn.Sequential(nn.Linear(16, 128), nn.GELU(), nn.Linear(128, width))

    def forward(self, x):
        return self.dec(self.enc(x))


class TrainLoop:
    def __init__(self, args, rank, world, folder, board):
        self.args, self.rank, self.world = args, rank, world
        self.folder, self.board = folder, board
        torch.manual_seed(args.seed)
        self.model = Denoiser(args.width)
        self.opt = torch.optim.Adam(self.model.parameters(), lr=args.lr)
        self.data = sensor_windows(args.windows, args.width, args.seed)[rank::world]
        self.noise = torch.Generator().manual_seed(args.seed * 13 + rank)
        self.step = 0

    def batches(self):
        epoch = 0
        while True:
            g = torch.Generator().manual_seed(self.args.seed + epoch)
            order = torch.randperm(len(self.data), generator=g)
            for i in range(0, len(order) - self.args.batch + 1, self.args.batch):
                yield self.data[order[i:i + self.args.batch]]
            epoch += 1

    def accumulate(self, clean):
        self.opt.zero_grad()
        total = 0.0
        for part in clean.chunk(self.args.micro):
            noisy = part + 0.3 * torch.randn(part.shape, generator=self.noise)
            loss = nn.functional.mse_loss(self.model(noisy), part) / self.args.micro
            loss.backward()
            total += loss.item()
        return total

    def reduce_gradients(self):
        for p in self.model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= self.world

    def save(self, tag):
        dist.barrier()
        states = [None] * self.world
        dist.all_gather_object(states, {"rank": self.rank, "noise": self.noise.get_state()})
        if self.rank == 0:
            torch.save(
                {"model": self.model.state_dict(), "opt": self.opt.state_dict(), "step": self.step, "ranks": states},
                os.path.join(self.folder, f"{tag}.pt"),
            )

    def anyone_leaving(self):
        flag = torch.tensor([1 if self.board.leaving else 0])
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag.item())

    def run(self):
        stream = self.batches()
        while self.step < self.args.steps:
            if self.anyone_leaving():
                logger.info("allocation ends (%s), saving at step %d", self.board.reason, self.step)
                break
            loss = self.accumulate(next(stream))
            self.reduce_gradients()
            self.opt.step()
            self.step += 1
            if self.rank == 0 and self.step % 12 == 0:
                logger.info("step %d loss %.4f", self.step, loss)
            if self.step % self.args.save_every == 0:
                self.save(f"step{self.step}")
            if self.step == self.args.drill_step and self.rank == self.args.drill_rank:
                self.board.rehearse()
        self.save("last")
        return self.step
