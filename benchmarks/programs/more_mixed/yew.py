"""Train with DDP, evaluate on the main rank only with the unwrapped module."""
import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Tagger(nn.Module):
    def __init__(self, vocab=50, tags=7, d=24):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.lstm = nn.LSTM(d, d, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * d, tags)

    def forward(self, ids):
        return self.out(self.lstm(self.emb(ids))[0])


def make_data(n, seed):
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 50, (n, 12), generator=g)
    return TensorDataset(ids, (ids + ids.roll(1, 1)) % 7)


class Evaluator:
    def __init__(self, data):
        self.loader = DataLoader(data, batch_size=8)
        self.history = []

    @torch.no_grad()
    def __call__(self, model):
        start = time.time()
        model.eval()
        hit = total = 0
        for ids, tags in self.loader:
            pred = model(ids).argmax(-1)
            hit += (pred == tags).sum().item()
            total += tags.numel()
        model.train()
        self.history.append(hit / total)
        return hit / total, time.time() - start


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--eval-size", type=int, default=800)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(6)
    train = make_data(512, 1)
    sampler = DistributedSampler(train)
    loader = DataLoader(train, batch_size=16, sampler=sampler)
    ddp = DDP(Tagger())
    opt = torch.optim.AdamW(ddp.parameters(), lr=5e-3)
    evaluate = Evaluator(make_data(args.eval_size, 2)) if rank == 0 else None
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for ids, tags in loader:
            loss = F.cross_entropy(ddp(ids).flatten(0, 1), tags.flatten())
            opt.zero_grad()
            loss.backward()
            opt.step()
        if rank == 0:
            acc, secs = evaluate(ddp.module)
            print(f"epoch {epoch} loss {loss.item():.4f} acc {acc:.3f} ({secs:.1f}s)", flush=True)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
