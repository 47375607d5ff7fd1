"""Two-level gradient averaging: inside a host each step, between hosts every few steps."""
import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

logging.basicConfig(level=logging.INFO, format="%(message)s")
log = logging.getLogger("pumice")


class Topology:
    """Ranks are laid out host by host; the first one of each host leads it."""

    def __init__(self, per_host):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.per_host = per_host
        self.leaders = list(range(0, self.world, per_host))
        self.leader_group = None
        self.host_group = None

    @property
    def is_leader(self):
        return self.rank in self.leaders

    def build(self):
        if self.is_leader:
            self.leader_group = dist.new_group(self.leaders)
        for first in self.leaders:
            members = list(range(first, first + self.per_host))
            group = dist.new_group(members)
            if self.rank in members:
                self.host_group = group

    def average_in_host(self, flat):
        dist.all_reduce(flat, group=self.host_group)
        return flat / self.per_host

    def average_between_hosts(self, flat):
        if self.is_leader:
            dist.all_reduce(flat, group=self.leader_group)
            flat /= len(self.leaders)
        first = self.rank - self.rank % self.per_host
        dist.broadcast(flat, src=first, group=self.host_group)
        return flat


def make_batch(step, rank, size):
    g = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(size, 16, generator=g)
    return x, (x[:, :4].sum(1) > 0).long()


def flatten(tensors):
    return torch.cat([t.reshape(-1) for t in tensors])


def unflatten_into(flat, tensors):
    at = 0
    for t in tensors:
        t.copy_(flat[at:at + t.numel()].view_as(t))
        at += t.numel()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=24)
    p.add_argument("--warm", type=int, default=6, help="steps of plain averaging over all ranks")
    p.add_argument("--every", type=int, default=3)
    p.add_argument("--per-host", type=int, default=2)
    args = p.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    topo = Topology(args.per_host)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2))
    params = list(model.parameters())
    opt = torch.optim.SGD(params, lr=0.1)
    for step in range(args.steps):
        if step == args.warm:
            topo.build()
        x, y = make_batch(step, topo.rank, 16)
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        flat = flatten([q.grad for q in params])
        if step < args.warm:
            dist.all_reduce(flat)
            flat /= topo.world
        else:
            flat = topo.average_in_host(flat)
        unflatten_into(flat, [q.grad for q in params])
        opt.step()
        if step >= args.warm and (step + 1) % args.every == 0:
            with torch.no_grad():
                unflatten_into(topo.average_between_hosts(flatten(params)), params)
        if topo.rank == 0 and step % 6 == 0:
            log.info("step %d loss %.4f", step, loss.item())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
