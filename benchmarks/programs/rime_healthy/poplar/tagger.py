"""Sequence tagger with length buckets and online hard example mining."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset

from buckets import BucketBatches


class Tags(Dataset):
    def __init__(self, n, seed, vocab=40):
        g = torch.Generator().manual_seed(seed)
        self.rows = []
        for _ in range(n):
            k = int(torch.randint(5, 41, (1,), generator=g))
            x = torch.randint(1, vocab, (k,), generator=g)
            prev = torch.cat([x.new_zeros(1), x[:-1]])
            self.rows.append((x, (x + prev) % 4))
        self.lengths = [len(r[0]) for r in self.rows]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def collate(rows):
    rows = sorted(rows, key=lambda r: -len(r[0]))
    return (pad_sequence([r[0] for r in rows], batch_first=True), pad_sequence([r[1] for r in rows], batch_first=True, padding_value=-1),
            torch.tensor([len(r[0]) for r in rows]))


class Tagger(nn.Module):
    def __init__(self, vocab=40, d=48):
        super().__init__()
        self.e, self.r = nn.Embedding(vocab, d, padding_idx=0), nn.GRU(d, d, batch_first=True, bidirectional=True)
        self.o = nn.Sequential(nn.Linear(2 * d, 2 * d), nn.ReLU(), nn.Linear(2 * d, 4))

    def forward(self, x, n):
        h, _ = self.r(pack_padded_sequence(self.e(x), n, batch_first=True))
        return self.o(pad_packed_sequence(h, batch_first=True)[0])


def hard_loss(logits, y, keep):
    each = F.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=-1, reduction="none")
    valid = each[y.flatten() >= 0]
    k = max(1, int(keep * len(valid)))
    return valid.topk(k).values.sum(), k


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    t = torch.zeros(2)
    for x, y, n in loader:
        ok = (model(x, n).argmax(-1) == y) & (y >= 0)
        t += torch.tensor([float(ok.sum()), float((y >= 0).sum())])
    dist.all_reduce(t)
    model.train()
    return (t[0] / t[1]).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=5)
    ap.add_argument("--budget", type=int, default=400)
    ap.add_argument("--keep", type=float, default=0.5)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    train, val = Tags(1800, 1), Tags(300, 2)
    sampler = BucketBatches(train.lengths, args.budget, world, rank, seed=5)
    loader = DataLoader(train, batch_sampler=sampler, collate_fn=collate)
    val_loader = DataLoader(val, batch_sampler=BucketBatches(val.lengths, 800, world, rank, seed=0), collate_fn=collate)
    model = DDP(Tagger())
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        keep = 1.0 if epoch < 2 else args.keep
        for x, y, n in loader:
            total, k = hard_loss(model(x, n), y, keep)
            kept = torch.tensor(float(k))
            dist.all_reduce(kept)
            loss = total * world / kept
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 2.0)
            opt.step()
        acc = evaluate(model.module, val_loader)
        if rank == 0:
            print(f"epoch {epoch} batches {len(loader)} keep {keep} loss {loss.item():.4f} acc {acc:.3f}", flush=True)
    if rank == 0:
        torch.save(model.module.state_dict(), "tagger.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
