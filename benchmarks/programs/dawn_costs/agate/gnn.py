"""Graph network on ego-graphs; normalised adjacencies are kept for reuse up to a limit."""
import os
from collections import OrderedDict

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

GRAPHS, NODES, FEATURES, CLASSES = 640, 320, 24, 4


def make_graph(index):
    g = torch.Generator().manual_seed(10_000 + index)
    label = torch.randint(CLASSES, (NODES,), generator=g)
    same = label[:, None] == label[None, :]
    prob = torch.where(same, 0.05, 0.01)
    upper = (torch.rand(NODES, NODES, generator=g) < prob).triu(1).float()
    x = F.one_hot(label, CLASSES).float() @ torch.randn(
        CLASSES, FEATURES, generator=torch.Generator().manual_seed(3))
    x = x + 1.5 * torch.randn(NODES, FEATURES, generator=g)
    return upper + upper.T, x, label


class AdjacencyCache:
    """Least-recently-used store of D^-1/2 (A + I) D^-1/2."""

    def __init__(self, capacity=220):
        self.capacity = capacity
        self.store = OrderedDict()
        self.hits = self.misses = 0

    def get(self, index):
        if index in self.store:
            self.hits += 1
            self.store.move_to_end(index)
            return self.store[index]
        self.misses += 1
        adjacency, x, label = make_graph(index)
        adjacency = adjacency + torch.eye(NODES)
        scale = adjacency.sum(1).rsqrt()
        entry = (scale[:, None] * adjacency * scale[None, :], x, label)
        self.store[index] = entry
        if len(self.store) > self.capacity:
            self.store.popitem(last=False)
        return entry


class GCN(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.first = nn.Linear(FEATURES, hidden)
        self.second = nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, CLASSES)

    def forward(self, adj, x):
        x = torch.relu(adj @ self.first(x))
        x = torch.relu(adj @ self.second(x)) + x
        return self.out(x)


def main():
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(2)
    model = DDP(GCN())
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    cache = AdjacencyCache()
    mine = torch.arange(rank, GRAPHS, world)
    step = 0
    for epoch in range(3):
        order = mine[torch.randperm(len(mine), generator=torch.Generator().manual_seed(epoch))]
        for chunk in order.split(4):
            adj, x, label = (torch.stack(t) for t in zip(*(cache.get(int(i)) for i in chunk)))
            scores = model(adj, x)
            loss = F.cross_entropy(scores.flatten(0, 1), label.flatten())
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            if step % 20 == 0 and rank == 0:
                acc = (scores.argmax(-1) == label).float().mean()
                print(f"step {step} loss {loss.item():.4f} acc {acc:.3f} "
                      f"cache {len(cache.store)}/{cache.capacity} hits {cache.hits}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
