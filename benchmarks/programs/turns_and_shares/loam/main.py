"""Next-item recommender on generated baskets; gradients averaged by hand, reports in the background."""
import argparse
import os
import tempfile
import threading

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from reporter import Reporter


class Baskets(Dataset):
    def __init__(self, count, items, size, seed):
        g = torch.Generator().manual_seed(seed)
        start = torch.randint(items, (count, 1), generator=g)
        stride = torch.randint(1, 4, (count, 1), generator=g)
        self.rows = (start + stride * torch.arange(size + 1)) % items

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i, :-1], self.rows[i, -1]


class BasketNet(nn.Module):
    def __init__(self, items, width, size):
        super().__init__()
        self.items = nn.Embedding(items, width)
        self.place = nn.Parameter(torch.zeros(size, width))
        self.mix = nn.Linear(size * width, 768)
        self.core = nn.Linear(768, 768)
        self.out = nn.Linear(768, items)

    def forward(self, basket):
        h = (self.items(basket) + self.place).flatten(1)
        h = F.gelu(self.mix(h))
        h = h + F.gelu(self.core(h))
        return self.out(h)


class GradientExchange:
    def __init__(self, params, group, gate):
        self.params = list(params)
        self.group = group
        self.gate = gate
        self.world = dist.get_world_size(group)

    def __call__(self):
        flat = torch.cat([p.grad.view(-1) for p in self.params])
        with self.gate:
            dist.all_reduce(flat, group=self.group)
        flat /= self.world
        for p, g in zip(self.params, flat.split([p.numel() for p in self.params])):
            p.grad.copy_(g.view_as(p))


def train(args):
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    data = Baskets(4096, args.items, args.size, seed=8)
    sampler = DistributedSampler(data, world, rank, seed=args.seed, drop_last=True)
    loader = DataLoader(data, args.batch, sampler=sampler, drop_last=True)
    net = BasketNet(args.items, args.width, args.size)
    for p in net.parameters():
        dist.broadcast(p.data, 0)
    opt = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=0.9)

    gate = threading.Lock()
    gradient_group = dist.new_group()
    report_group = dist.new_group()
    exchange = GradientExchange(net.parameters(), gradient_group, gate)
    os.makedirs(args.out, exist_ok=True)
    reporter = Reporter(report_group, gate, os.path.join(args.out, "report.jsonl"))
    reporter.start()

    step, recent = 0, []
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for basket, nxt in loader:
            loss = F.cross_entropy(net(basket), nxt)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            exchange()
            opt.step()
            step += 1
            recent.append(loss.item())
            if step % args.report_every == 0:
                reporter.submit(step, recent, net.core.weight)
                recent = []
    reporter.close()
    if rank == 0:
        torch.save(net.state_dict(), os.path.join(args.out, "baskets.pt"))
        print(f"done after {step} steps", flush=True)
    dist.barrier()


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--items", type=int, default=50)
    p.add_argument("--width", type=int, default=16)
    p.add_argument("--size", type=int, default=6)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--epochs", type=int, default=1)
    p.add_argument("--lr", type=float, default=0.05)
    p.add_argument("--report-every", type=int, default=12)
    p.add_argument("--seed", type=int, default=2)
    p.add_argument("--out", default=os.path.join(tempfile.gettempdir(), "baskets"))
    options = p.parse_args()
    dist.init_process_group("gloo")
    train(options)
    dist.destroy_process_group()
