import argparse
import math

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class PeerGraph:
    """One-peer exponential graph: in round k every node talks to the node 2**(k mod log2 n) away."""

    def __init__(self, rank, world):
        self.rank, self.world = rank, world
        self.hops = max(1, int(math.log2(world)))

    def peers(self, k):
        off = 2 ** (k % self.hops)
        return (self.rank + off) % self.world, (self.rank - off) % self.world


class PushSum:
    def __init__(self, module, graph):
        self.module, self.graph = module, graph
        self.w = torch.ones(1)

    @torch.no_grad()
    def mix(self, k):
        to, frm = self.graph.peers(k)
        flat = torch.cat([p.flatten() for p in self.module.parameters()] + [self.w])
        flat[:-1] *= self.w
        flat /= 2
        inbox = torch.empty_like(flat)
        reqs = dist.batch_isend_irecv([dist.P2POp(dist.isend, flat, to), dist.P2POp(dist.irecv, inbox, frm)])
        for r in reqs:
            r.wait()
        flat = flat + inbox
        self.w = flat[-1:].clone()
        flat = flat[:-1] / self.w
        i = 0
        for p in self.module.parameters():
            p.copy_(flat[i:i + p.numel()].view_as(p))
            i += p.numel()


def data(n=512):
    g = torch.Generator().manual_seed(11)
    x = torch.randn(n, 12, generator=g)
    return TensorDataset(x, (x @ torch.randn(12, 5, generator=g)).argmax(1))


def consensus(model):
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    mean = flat.clone()
    dist.all_reduce(mean)
    mean /= dist.get_world_size()
    gap = (flat - mean).norm()
    dist.all_reduce(gap, op=dist.ReduceOp.MAX)
    return gap.item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 5))
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    mixer = PushSum(model, PeerGraph(rank, world))
    ds = data()
    sampler = DistributedSampler(ds, world, rank, shuffle=True)
    loader = DataLoader(ds, batch_size=16, sampler=sampler)
    k = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            opt.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            mixer.mix(k)
            k += 1
        gap = consensus(model)
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.3f} consensus distance {gap:.4f}", flush=True)
    with torch.no_grad():
        for p in model.parameters():
            dist.all_reduce(p.data)
            p.div_(world)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
