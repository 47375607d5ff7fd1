"""Decentralised training: neighbours on a ring mix their weights after every step."""
import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.data import DataLoader, TensorDataset

logger = logging.getLogger("basalt")


class Ring:
    def __init__(self):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.right = (self.rank + 1) % self.world
        self.left = (self.rank - 1) % self.world

    def shift(self, out):
        """Send a tensor to the right, return the one from the left."""
        inc = torch.empty_like(out)
        ops = [dist.P2POp(dist.isend, out, self.right), dist.P2POp(dist.irecv, inc, self.left)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        return inc


class GossipSGD:
    def __init__(self, model, ring, lr, weight=0.5):
        self.model, self.ring, self.weight = model, ring, weight
        self.opt = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)

    def zero_grad(self):
        self.opt.zero_grad(set_to_none=True)

    @torch.no_grad()
    def step(self):
        self.opt.step()
        vec = parameters_to_vector(self.model.parameters())
        other = self.ring.shift(vec)
        vector_to_parameters(vec.mul(1 - self.weight).add_(other, alpha=self.weight), self.model.parameters())


def build(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(30, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 3))


def local_data(rank):
    g = torch.Generator().manual_seed(500)
    w = torch.randn(30, 3, generator=g)
    g.manual_seed(501 + rank)
    x = torch.randn(480, 30, generator=g)
    return TensorDataset(x, (x @ w).argmax(1))


@torch.no_grad()
def disagreement(model):
    vec = parameters_to_vector(model.parameters())
    mean = vec.clone()
    dist.all_reduce(mean)
    mean /= dist.get_world_size()
    return (vec - mean).norm().item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--batch-size", type=int, default=32)
    ap.add_argument("--lr", type=float, default=0.05)
    args = ap.parse_args()
    logging.basicConfig(level=logging.INFO)
    dist.init_process_group("gloo")
    ring = Ring()
    model = build(21)
    opt = GossipSGD(model, ring, args.lr)
    torch.manual_seed(ring.rank)
    loader = DataLoader(local_data(ring.rank), batch_size=args.batch_size, shuffle=True, drop_last=True)
    for epoch in range(args.epochs):
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        d = disagreement(model)
        if ring.rank == 0:
            logger.info("epoch %d loss %.4f consensus %.4f", epoch, loss.item(), d)
    with torch.no_grad():
        for p in model.parameters():
            dist.all_reduce(p.data)
            p.data /= ring.world
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
