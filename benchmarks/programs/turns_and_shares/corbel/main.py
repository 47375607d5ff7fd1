"""Adapt a frozen encoder to a new task with low-rank layers and a fresh head."""
import argparse
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from lowrank import attach, trained_only


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.merge = nn.Linear(width, width), nn.Linear(width, width)
        self.grow, self.shrink = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, h):
        b, t, w = h.shape
        n = self.n1(h)
        q, k, v = (f(n).view(b, t, self.heads, -1).transpose(1, 2) for f in (self.query, self.key, self.value))
        a = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, w)
        h = h + self.merge(a)
        return h + self.shrink(F.gelu(self.grow(self.n2(h))))


class Encoder(nn.Module):
    def __init__(self, vocab, width, depth, length, classes):
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)
        self.places = nn.Parameter(torch.randn(length, width) * 0.3)
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        h = self.tokens(x) + self.places
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h).mean(1))


class Motifs(Dataset):
    """Which of three token pairs comes in the sequence, next to each other."""

    def __init__(self, count, vocab, length, seed):
        g = torch.Generator().manual_seed(seed)
        self.x = torch.randint(8, vocab, (count, length), generator=g)
        self.y = torch.randint(3, (count,), generator=g)
        at = torch.randint(length - 1, (count,), generator=g)
        row = torch.arange(count)
        self.x[row, at] = 2 * self.y
        self.x[row, at + 1] = 2 * self.y + 1
        mute = torch.rand(count, generator=g) < 0.05
        self.y[mute] = torch.randint(3, (int(mute.sum()),), generator=g)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


def prepare(args):
    torch.manual_seed(args.seed)
    model = Encoder(args.vocab, args.width, args.depth, args.length, classes=3)
    for name, p in model.named_parameters():
        p.requires_grad_(name.startswith("head."))
    model = DistributedDataParallel(model)
    count = attach(model.module, {"query", "value", "grow"}, rank=args.rank, dropout=args.dropout)
    return model, count


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    tally = torch.zeros(2)
    for x, y in loader:
        tally += torch.tensor([(model(x).argmax(1) == y).sum().item(), len(y)])
    model.train()
    dist.all_reduce(tally)
    return (tally[0] / tally[1]).item()


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--vocab", type=int, default=32)
    p.add_argument("--width", type=int, default=32)
    p.add_argument("--depth", type=int, default=2)
    p.add_argument("--length", type=int, default=12)
    p.add_argument("--rank", type=int, default=4)
    p.add_argument("--dropout", type=float, default=0.05)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--lr", type=float, default=6e-3)
    p.add_argument("--seed", type=int, default=14)
    p.add_argument("--out", default=os.path.join(tempfile.gettempdir(), "motifs"))
    args = p.parse_args()

    dist.init_process_group("gloo")
    me = dist.get_rank()
    model, count = prepare(args)
    learned = [q for q in model.parameters() if q.requires_grad]
    if me == 0:
        print(f"{count} layers adapted, {sum(q.numel() for q in learned)} parameters learn", flush=True)
    opt = torch.optim.AdamW(learned, lr=args.lr, weight_decay=0.01)
    torch.manual_seed(args.seed + 100 + me)

    train = Motifs(2048, args.vocab, args.length, 1)
    valid = Motifs(512, args.vocab, args.length, 2)
    sampler = DistributedSampler(train, seed=args.seed, drop_last=True)
    loader = DataLoader(train, args.batch, sampler=sampler, drop_last=True)
    held = DataLoader(valid, args.batch, sampler=DistributedSampler(valid, shuffle=False))
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(1)
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            total += loss.detach()
        dist.all_reduce(total)
        score = evaluate(model.module, held)
        if me == 0:
            print(f"epoch {epoch} loss {total.item() / len(loader) / dist.get_world_size():.4f} "
                  f"accuracy {score:.3f}", flush=True)
    if me == 0:
        os.makedirs(args.out, exist_ok=True)
        torch.save(trained_only(model.module), os.path.join(args.out, "adapters.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
