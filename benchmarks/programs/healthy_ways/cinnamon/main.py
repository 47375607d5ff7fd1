"""Sequence tagging with batches bucketed by length; the loss is weighted by true tokens of all ranks."""
import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

from batching import TokenBudgetBatches, collate


class Tagging(Dataset):
    """Each position is tagged by the parity of larger numbers before it and by its own class."""

    def __init__(self, n, seed, vocab=20, longest=60):
        g = torch.Generator().manual_seed(seed)
        self.rows = []
        lengths = (4 + (longest - 4) * torch.rand(n, generator=g) ** 2).long()
        for l in lengths.tolist():
            x = torch.randint(1, vocab + 1, (l,), generator=g)
            prev = torch.cat([torch.zeros(1, dtype=torch.long), x[:-1]])
            y = (x > prev).long() * 2 + (x % 3 == 0).long()
            self.rows.append((x, y))
        self.lengths = lengths

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


class Tagger(nn.Module):
    def __init__(self, vocab=21, dim=48, tags=4):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim, padding_idx=0)
        self.conv1, self.conv2 = nn.Conv1d(dim, dim, 3, padding=1), nn.Conv1d(dim, dim, 3, padding=1)
        self.norm, self.drop, self.out = nn.LayerNorm(dim), nn.Dropout(0.1), nn.Linear(dim, tags)

    def forward(self, x):
        mask = (x > 0).unsqueeze(-1)
        h = self.emb(x)
        h = h + F.gelu(self.conv1(h.transpose(1, 2))).transpose(1, 2) * mask
        h = h + F.gelu(self.conv2(h.transpose(1, 2))).transpose(1, 2) * mask
        return self.out(self.drop(self.norm(h)))


def token_loss(logits, y, reduction="sum"):
    return F.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=-100, reduction=reduction)


@torch.no_grad()
def evaluate(net, data, rank, world):
    net.eval()
    loader = DataLoader(torch.utils.data.Subset(data, range(rank, len(data), world)), batch_size=32, collate_fn=collate)
    s = torch.zeros(3)
    for x, y in loader:
        logits, known = net(x), y != -100
        s += torch.tensor([token_loss(logits, y).item(), (logits.argmax(-1) == y)[known].sum().item(), float(known.sum())])
    dist.all_reduce(s)
    return (s[0] / s[2]).item(), (s[1] / s[2]).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--budget", type=int, default=480)
    ap.add_argument("--lr", type=float, default=4e-3)
    ap.add_argument("--seed", type=int, default=24)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    train, held = Tagging(1500, 1), Tagging(300, 2)
    batches = TokenBudgetBatches(train.lengths, args.budget, rank, world, args.seed)
    loader = DataLoader(train, batch_sampler=batches, collate_fn=collate)
    model = DDP(Tagger())
    torch.manual_seed(args.seed + 9000 + rank)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)

    for epoch in range(args.epochs):
        batches.set_epoch(epoch)
        for g in opt.param_groups:
            g["lr"] = args.lr * (0.5 ** epoch)
        model.train()
        sums, widths = torch.zeros(3), []
        for x, y in loader:
            tokens = (y != -100).sum()
            everywhere = tokens.clone()
            dist.all_reduce(everywhere)
            total = token_loss(model(x), y)
            loss = total * world / everywhere
            opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            sums += torch.tensor([total.item(), float(tokens), float(y.numel())])
            widths.append(x.shape[1])
        per_rank = [None] * world
        dist.all_gather_object(per_rank, (len(widths), int(sums[1]), min(widths), max(widths)))
        dist.all_reduce(sums)
        nll, acc = evaluate(model.module, held, rank, world)
        if rank == 0:
            print(f"epoch {epoch} train {(sums[0] / sums[1]).item():.4f} filled {(sums[1] / sums[2]).item():.3f} "
                  f"held {nll:.4f}/{acc:.3f} per rank (batches, tokens, shortest, longest) {per_rank}", flush=True)
    if rank == 0:
        os.makedirs("runs/cinnamon", exist_ok=True)
        torch.save(model.module.state_dict(), "runs/cinnamon/tagger.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
