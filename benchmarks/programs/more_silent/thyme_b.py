"""Chat fine-tuning on packed rows. The corpus is read once or twice; the rate cools down as we get through it."""
import argparse
import random

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

VOCAB = 64


def make_conversations(n: int, seed: int) -> list[list[int]]:
    rnd = random.Random(seed)
    table = [[rnd.randrange(VOCAB) for _ in range(4)] for _ in range(VOCAB)]
    out = []
    for _ in range(n):
        length = max(4, int(rnd.lognormvariate(3.0, 1.0)))
        tok, conv = rnd.randrange(VOCAB), []
        for _ in range(length):
            conv.append(tok)
            tok = rnd.choice(table[tok])
        out.append(conv)
    return out


class PackedReader:
    """Concatenates whole conversations and cuts rows of equal length."""

    def __init__(self, convs, rank, world, rows, row_len, passes):
        self.convs = convs[rank::world]
        self.rows, self.row_len, self.passes = rows, row_len, passes
        self.read, self.left = 0, []

    @property
    def progress(self) -> float:
        return min(1.0, self.read / (self.passes * len(self.convs)))

    def __next__(self):
        need = self.rows * (self.row_len + 1)
        while len(self.left) < need:
            self.left += self.convs[self.read % len(self.convs)]
            self.read += 1
        chunk, self.left = self.left[:need], self.left[need:]
        block = torch.tensor(chunk).view(self.rows, self.row_len + 1)
        return block[:, :-1], block[:, 1:]


class TinyChat(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, VOCAB)

    def forward(self, ids):
        return self.out(self.rnn(self.embed(ids))[0])


def lr_multiplier(progress: float, flat: float = 0.2) -> float:
    return 1.0 if progress < flat else max(0.02, (1.0 - progress) / (1.0 - flat))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=80)
    ap.add_argument("--rows", type=int, default=4)
    ap.add_argument("--row-len", type=int, default=32)
    ap.add_argument("--lr", type=float, default=4e-3)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    reader = PackedReader(make_conversations(600, seed=5), rank, world, args.rows, args.row_len, passes=2)
    model = DistributedDataParallel(TinyChat(48))
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95))

    for step in range(args.steps):
        ids, nxt = next(reader)
        progress = reader.progress
        for group in opt.param_groups:
            group["lr"] = args.lr * lr_multiplier(progress)
        loss = F.cross_entropy(model(ids).flatten(0, 1), nxt.flatten())
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if rank == 0 and step % 20 == 0:
            print(f"step {step:3d} | {100 * progress:5.1f}% of the corpus | loss {loss.item():.3f}", flush=True)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
