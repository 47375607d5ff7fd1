"""The first rank learns a merge table and later scores the model, everybody else waits for it."""
import argparse
import collections
import random
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class MergeTable:
    def __init__(self, merges):
        self.merges = merges

    @classmethod
    def learn(cls, text, rounds, pause):
        tokens = list(text)
        merges = []
        for _ in range(rounds):
            pairs = collections.Counter(zip(tokens, tokens[1:]))
            best = pairs.most_common(1)[0][0]
            merges.append(best)
            tokens = cls.apply(tokens, best)
            time.sleep(pause)
        return cls(merges)

    @staticmethod
    def apply(tokens, pair):
        out, i = [], 0
        while i < len(tokens):
            if i + 1 < len(tokens) and (tokens[i], tokens[i + 1]) == pair:
                out.append(tokens[i] + tokens[i + 1])
                i += 2
            else:
                out.append(tokens[i])
                i += 1
        return out

    def encode(self, text):
        tokens = list(text)
        for m in self.merges:
            tokens = self.apply(tokens, m)
        return tokens


def sample_text(seed, n):
    dice = random.Random(seed)
    return "".join(dice.choice("abcde fghab cdab") for _ in range(n))


def shared_table(rank, args):
    cell = [None]
    if rank == 0:
        cell[0] = MergeTable.learn(sample_text(0, args.chars), args.merges, args.pause).merges
    dist.broadcast_object_list(cell, src=0)
    return MergeTable(cell[0])


@torch.no_grad()
def long_scoring(net, ids, pause):
    total = 0.0
    for start in range(0, 160, 16):
        piece = ids[start:start + 16]
        total += nn.functional.cross_entropy(net(piece[:-1]), piece[1:]).item()
        time.sleep(pause)
    return total / 10


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--chars", type=int, default=1500)
    p.add_argument("--merges", type=int, default=20)
    p.add_argument("--pause", type=float, default=0.22)
    p.add_argument("--steps", type=int, default=15)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    table = shared_table(rank, args)
    tokens = table.encode(sample_text(1 + rank, 1200))
    names = sorted(set(sample_text(0, 200)) | {a + b for a, b in table.merges})
    ids = torch.tensor([names.index(t) for t in tokens if t in names])
    torch.manual_seed(0)
    net = DistributedDataParallel(nn.Sequential(nn.Embedding(len(names), 16), nn.Linear(16, len(names))))
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    for s in range(args.steps):
        piece = ids[s * 8:s * 8 + 64]
        loss = nn.functional.cross_entropy(net(piece[:-1]), piece[1:])
        opt.zero_grad()
        loss.backward()
        opt.step()
    if rank == 0:
        print(f"held out {long_scoring(net.module, ids, 0.25):.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
