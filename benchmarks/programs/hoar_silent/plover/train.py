import argparse
import contextlib
import logging

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

log = logging.getLogger("intent")


class IntentDataset(Dataset):
    """Short token sequences, label decided by which vocabulary third dominates."""

    def __init__(self, n, vocab=300, length=24, seed=3):
        g = torch.Generator().manual_seed(seed)
        self.y = torch.randint(0, 3, (n,), generator=g)
        base = torch.randint(0, vocab, (n, length), generator=g)
        own = torch.randint(0, vocab // 3, (n, length), generator=g) + (self.y * (vocab // 3))[:, None]
        pick = torch.rand(n, length, generator=g) < 0.35
        self.x = torch.where(pick, own, base)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class Encoder(nn.Module):
    def __init__(self, vocab=300, dim=48, classes=3):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.gru = nn.GRU(dim, dim, batch_first=True)
        self.norm = nn.LayerNorm(dim)
        self.out = nn.Linear(dim, classes)

    def forward(self, x):
        h, _ = self.gru(self.emb(x))
        return self.out(self.norm(h.mean(1)))


def parse():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=5)
    ap.add_argument("--micro-batch", type=int, default=16)
    ap.add_argument("--accum", type=int, default=4)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--n", type=int, default=840)
    return ap.parse_args()


def train_one_epoch(model, loader, opt, args):
    model.train()
    running, updates = 0.0, 0
    n_batches = len(loader)
    opt.zero_grad()
    for i, (x, y) in enumerate(loader):
        boundary = (i + 1) % args.accum == 0
        ctx = contextlib.nullcontext() if boundary else model.no_sync()
        with ctx:
            loss = F.cross_entropy(model(x), y) / args.accum
            loss.backward()
        running += loss.item() * args.accum
        if boundary or i + 1 == n_batches:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            opt.zero_grad()
            updates += 1
    return running / n_batches, updates


@torch.no_grad()
def evaluate(model, ds):
    model.eval()
    rank, world = dist.get_rank(), dist.get_world_size()
    hits = torch.zeros(2)
    idx = torch.arange(rank, len(ds), world)
    for chunk in idx.split(128):
        pred = model.module(ds.x[chunk]).argmax(-1)
        hits += torch.tensor([(pred == ds.y[chunk]).sum().item(), len(chunk)])
    dist.all_reduce(hits)
    return (hits[0] / hits[1]).item()


def main():
    args = parse()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(asctime)s %(message)s")
    torch.manual_seed(11)
    train, val = IntentDataset(args.n), IntentDataset(301, seed=4)
    sampler = DistributedSampler(train, shuffle=True, drop_last=True)
    loader = DataLoader(train, batch_size=args.micro_batch, sampler=sampler)
    model = DistributedDataParallel(Encoder())
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        loss, updates = train_one_epoch(model, loader, opt, args)
        acc = evaluate(model, val)
        log.info("epoch %d loss %.4f updates %d val acc %.3f", epoch, loss, updates, acc)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
