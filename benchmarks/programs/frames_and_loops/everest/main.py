import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from corpus import Documents, document_words


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--documents", type=int, default=540)
    p.add_argument("--words", type=int, default=480)
    p.add_argument("--window", type=int, default=48)
    p.add_argument("--steps-per-epoch", type=int, default=16)
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--epochs", type=int, default=5)
    p.add_argument("--dim", type=int, default=40)
    p.add_argument("--lr", type=float, default=4e-3)
    p.add_argument("--seed", type=int, default=10)
    return p.parse_args()


def split_documents(total: int, words: int, rank: int, world: int):
    """Contiguous parts, cut where the running token count says so."""
    weight = [document_words(i, total, words) for i in range(total)]
    target = sum(weight) / world
    parts, acc, start = [], 0.0, 0
    for i, w in enumerate(weight):
        acc += w
        if acc >= target * (len(parts) + 1) and len(parts) < world - 1:
            parts.append(range(start, i + 1))
            start = i + 1
    parts.append(range(start, total))
    return parts[rank]


class GRULM(nn.Module):
    def __init__(self, vocab, dim):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.norm = nn.LayerNorm(dim)
        self.out = nn.Linear(dim, vocab)

    def forward(self, x):
        h, _ = self.rnn(self.emb(x))
        return self.out(self.norm(h))


class Cycler:
    """Keeps going through the loader; an epoch here is a fixed number of steps."""

    def __init__(self, loader):
        self.loader = loader
        self.it = iter(loader)
        self.waited = 0.0

    def next(self):
        t = time.perf_counter()
        try:
            item = next(self.it)
        except StopIteration:
            self.it = iter(self.loader)
            item = next(self.it)
        self.waited += time.perf_counter() - t
        return item


def main():
    args = parse()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    data = Documents(split_documents(args.documents, args.words, rank, world), args)
    cycler = Cycler(DataLoader(data, args.batch, shuffle=False, drop_last=False))
    model = DDP(GRULM(data.tok.vocab, args.dim))
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.epochs * args.steps_per_epoch)
    for epoch in range(args.epochs):
        t0, w0 = time.perf_counter(), cycler.waited
        sums = torch.zeros(2)
        for _ in range(args.steps_per_epoch):
            x, y = cycler.next()
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            sched.step()
            sums += torch.tensor([loss.item(), 1.0])
        dist.all_reduce(sums)
        if rank == 0:
            print(f"epoch {epoch} loss {sums[0] / sums[1]:.4f} {time.perf_counter() - t0:.2f}s "
                  f"(data {cycler.waited - w0:.2f}s)", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
