"""Local SGD on a small image classifier: H local steps, then parameters, momentum and BN statistics are averaged."""
import argparse
import logging
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

log = logging.getLogger("localsgd")


@dataclass
class Config:
    epochs: int = 4
    batch_size: int = 8
    local_steps: int = 5
    warmup_steps: int = 4
    lr: float = 0.05
    momentum: float = 0.9
    seed: int = 5


class TinyResNet(nn.Module):
    def __init__(self, classes=4, ch=8):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, ch, 3, padding=1, bias=False), nn.BatchNorm2d(ch), nn.ReLU())
        self.b1 = nn.Sequential(nn.Conv2d(ch, ch, 3, padding=1, bias=False), nn.BatchNorm2d(ch))
        self.b2 = nn.Sequential(nn.Conv2d(ch, ch, 3, padding=1, bias=False), nn.BatchNorm2d(ch))
        self.pool = nn.AvgPool2d(2)
        self.fc = nn.Linear(ch, classes)

    def forward(self, x):
        x = self.pool(self.stem(x))
        x = torch.relu(x + self.b1(x))
        x = torch.relu(x + self.b2(x))
        return self.fc(x.mean((2, 3)))


def make_set(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 4, (n,), generator=g)
    protos = torch.randn(4, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    x = protos[y] * 0.6 + torch.randn(n, 3, 12, 12, generator=g)
    return TensorDataset(x, y)


class PeriodicAverager:
    """Averages every `period` optimizer steps after `warmup` steps in which it averages each time."""

    def __init__(self, model, optimizer, period, warmup):
        self.model, self.optimizer = model, optimizer
        self.period, self.warmup = period, warmup
        self.step_count = 0
        self.rounds = 0

    def step(self):
        self.step_count += 1
        if self.step_count <= self.warmup or (self.step_count - self.warmup) % self.period == 0:
            self.average()

    @torch.no_grad()
    def average(self):
        world = dist.get_world_size()
        params = list(self.model.parameters())
        flat = parameters_to_vector(params)
        dist.all_reduce(flat)
        vector_to_parameters(flat / world, params)
        moms = [self.optimizer.state[p]["momentum_buffer"] for p in params]
        flat = parameters_to_vector(moms)
        dist.all_reduce(flat)
        vector_to_parameters(flat / world, moms)
        stats = [b for b in self.model.buffers() if b.is_floating_point()]
        flat = torch.cat([b.flatten() for b in stats])
        dist.all_reduce(flat)
        offset = 0
        for b in stats:
            b.copy_((flat[offset:offset + b.numel()] / world).view_as(b))
            offset += b.numel()
        self.rounds += 1


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    counts = torch.zeros(2)
    for x, y in loader:
        counts += torch.tensor([(model(x).argmax(1) == y).sum().item(), y.numel()], dtype=torch.float)
    dist.all_reduce(counts)
    model.train()
    return (counts[0] / counts[1]).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--local-steps", type=int, default=Config.local_steps)
    parser.add_argument("--epochs", type=int, default=Config.epochs)
    args = parser.parse_args()
    cfg = Config(local_steps=args.local_steps, epochs=args.epochs)
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    dist.init_process_group("gloo")
    rank = dist.get_rank()

    torch.manual_seed(cfg.seed)
    model = TinyResNet()
    for t in model.state_dict().values():
        dist.broadcast(t, 0)
    train, val = make_set(192, 1), make_set(64, 2)
    sampler = DistributedSampler(train, shuffle=True, seed=cfg.seed, drop_last=True)
    loader = DataLoader(train, cfg.batch_size, sampler=sampler, drop_last=True)
    val_loader = DataLoader(val, 32, sampler=DistributedSampler(val, shuffle=False))
    opt = torch.optim.SGD(model.parameters(), lr=cfg.lr, momentum=cfg.momentum)
    sched = torch.optim.lr_scheduler.MultiStepLR(opt, [cfg.epochs - 1], 0.1)
    averager = PeriodicAverager(model, opt, cfg.local_steps, cfg.warmup_steps)

    for epoch in range(cfg.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(1)
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            averager.step()
            total += loss.detach()
        sched.step()
        averager.average()
        acc = evaluate(model, val_loader)
        dist.all_reduce(total)
        if rank == 0:
            log.info("epoch %d loss %.4f acc %.3f (%d averaging rounds)", epoch,
                     total.item() / len(loader) / dist.get_world_size(), acc, averager.rounds)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
