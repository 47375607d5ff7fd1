# %% Sequence tagging on generated sentences, exported from the notebook of the same name
import argparse
import math
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from ledger import Ledger

VOCAB, TAGS, LENGTH = 200, 6, 20


# %% data
class Sentences(Dataset):
    """The tag of a token depends on the token and on its left neighbour."""

    def __init__(self, count, seed):
        gen = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(1, VOCAB, (count, LENGTH), generator=gen)
        left = torch.roll(self.tokens, 1, dims=1)
        left[:, 0] = 0
        self.tags = (self.tokens + 3 * left) % TAGS

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, i):
        return self.tokens[i], self.tags[i]


# %% model
class Tagger(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.mix = nn.Conv1d(dim, 2 * dim, 3, padding=1)
        self.out = nn.Linear(2 * dim, TAGS)

    def forward(self, tokens):
        hidden = self.mix(self.embed(tokens).transpose(1, 2)).relu().transpose(1, 2)
        return self.out(hidden)


@torch.no_grad()
def accuracy(model, loader):
    model.eval()
    counts = torch.zeros(2, dtype=torch.float64)
    for tokens, tags in loader:
        counts += torch.tensor([(model(tokens).argmax(-1) == tags).sum(), tags.numel()], dtype=torch.float64)
    dist.all_reduce(counts)
    model.train()
    return (counts[0] / counts[1]).item()


# %% run
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=8)
parser.add_argument("--count", type=int, default=6400)
parser.add_argument("--batch", type=int, default=25)
parser.add_argument("--dim", type=int, default=64)
parser.add_argument("--lr", type=float, default=4e-3)
parser.add_argument("--logdir", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "log"))


def main():
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(3)
    train = Sentences(args.count, seed=0)
    valid = Sentences(800, seed=1)
    sampler = DistributedSampler(train, seed=6)
    loader = DataLoader(train, args.batch, sampler=sampler)
    valid_loader = DataLoader(torch.utils.data.Subset(valid, range(rank, len(valid), world)), 100)
    model = DDP(Tagger(args.dim))
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    total = args.epochs * len(loader)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: 0.5 * (1 + math.cos(math.pi * min(s, total) / total)))
    ledger = Ledger(args.logdir) if rank == 0 else None
    step = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for tokens, tags in loader:
            loss = F.cross_entropy(model(tokens).flatten(0, 1), tags.flatten())
            opt.zero_grad()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            opt.step()
            if ledger is not None:
                ledger.add(step=step, epoch=epoch, loss=f"{loss.item():.5f}", grad_norm=f"{norm.item():.4f}",
                           lr=f"{sched.get_last_lr()[0]:.6f}")
            sched.step()
            step += 1
        acc = accuracy(model.module, valid_loader)
        if rank == 0:
            print(f"epoch {epoch + 1}/{args.epochs} accuracy {acc:.3f}", flush=True)
    if ledger is not None:
        ledger.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
