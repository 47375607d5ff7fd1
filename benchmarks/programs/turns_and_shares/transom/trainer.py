"""A training job that can be cut in two and taken up again."""
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from sparse import TopKExchange


def tones(count, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(6, (count,), generator=g)
    t = torch.arange(24).float()
    x = torch.sin(t * (0.2 + 0.12 * y.unsqueeze(1)) + torch.rand(count, 1, generator=g) * 6.28)
    return TensorDataset(x + 0.9 * torch.randn(count, 24, generator=g), y)


class Job:
    def __init__(self, args):
        self.args = args
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(args.seed)
        self.net = nn.Sequential(nn.Linear(24, args.width), nn.ReLU(), nn.Linear(args.width, args.width),
                                 nn.ReLU(), nn.Linear(args.width, 6))
        for p in self.net.parameters():
            dist.broadcast(p.data, 0)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=args.lr, momentum=0.9)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.opt, 2, gamma=0.7)
        self.exchange = TopKExchange(self.net.parameters(), args.share)
        data = tones(2048, 1)
        self.sampler = DistributedSampler(data, self.world, self.rank, seed=args.seed, drop_last=True)
        self.loader = DataLoader(data, args.batch, sampler=self.sampler, drop_last=True)
        self.held = tones(600, 2).tensors
        self.epoch = 0

    @property
    def path(self):
        return os.path.join(self.args.out, "job.pt")

    def save(self):
        exchange = [None] * self.world
        dist.all_gather_object(exchange, self.exchange.state_dict())
        if self.rank == 0:
            os.makedirs(self.args.out, exist_ok=True)
            torch.save({"epoch": self.epoch, "net": self.net.state_dict(), "opt": self.opt.state_dict(),
                        "schedule": self.schedule.state_dict(), "exchange": exchange}, self.path)
        dist.barrier()

    def load(self):
        state = torch.load(self.path, map_location="cpu")
        self.epoch = state["epoch"]
        self.net.load_state_dict(state["net"])
        self.opt.load_state_dict(state["opt"])
        self.schedule.load_state_dict(state["schedule"])
        self.exchange.load_state_dict(state["exchange"][self.rank])
        dist.barrier()

    def run(self, until):
        while self.epoch < until:
            self.sampler.set_epoch(self.epoch)
            total = torch.zeros(1)
            for x, y in self.loader:
                loss = F.cross_entropy(self.net(x), y)
                self.opt.zero_grad()
                loss.backward()
                self.exchange()
                self.opt.step()
                total += loss.detach()
            self.schedule.step()
            self.epoch += 1
            dist.all_reduce(total)
            if self.rank == 0:
                with torch.no_grad():
                    acc = (self.net(self.held[0]).argmax(1) == self.held[1]).float().mean().item()
                print(f"epoch {self.epoch} loss {total.item() / len(self.loader) / self.world:.4f} "
                      f"accuracy {acc:.3f}", flush=True)
            self.save()
