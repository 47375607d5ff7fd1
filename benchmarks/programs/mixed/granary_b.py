import gc
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Node:
    __slots__ = ("parent", "children", "value")

    def __init__(self, parent, value):
        self.parent, self.value, self.children = parent, value, []
        if parent is not None:
            parent.children.append(self)


def build_lexicon(entries):
    return {i: [[i, i + 1], [i * 2, i % 7]] for i in range(entries)}


def parse(tokens):
    root = Node(None, 0)
    current, count = root, 1
    for t in tokens:
        current = Node(root if t % 3 == 0 else current, t)
        count += 1
    return root, count


def featurise(root, lexicon, dim):
    out = torch.zeros(dim)
    stack = [root]
    while stack:
        node = stack.pop()
        first, second = lexicon[node.value]
        out[first[1] % dim] += 1.0
        out[second[0] % dim] += 0.5
        stack.extend(node.children)
    return out


class Housekeeper:
    def __init__(self, limit):
        self.limit, self.pending = limit, 0

    def add(self, count):
        self.pending += count

    def maybe_collect(self, step):
        if step % 30 == 29:
            gc.collect()
            self.pending = 0


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    lexicon = build_lexicon(250_000)
    gc.collect()
    gc.freeze()
    gc.disable()
    keeper = Housekeeper(limit=3000)
    model = DDP(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 4)))
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    gen = torch.Generator().manual_seed(50 + rank)
    for step in range(120):
        rows, labels = [], []
        for _ in range(8):
            length = int(torch.randint(20, 120, (1,), generator=gen))
            tokens = torch.randint(0, 250_000, (length,), generator=gen).tolist()
            root, count = parse(tokens)
            keeper.add(count)
            rows.append(featurise(root, lexicon, 64))
            labels.append(sum(tokens) % 4)
        loss = nn.functional.cross_entropy(model(torch.stack(rows)), torch.tensor(labels))
        opt.zero_grad()
        loss.backward()
        opt.step()
        keeper.maybe_collect(step)
        if rank == 0 and step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
