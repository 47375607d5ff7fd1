import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class WorkLedger:
    """Shards are taken from a shared counter, whoever is free takes the next one."""

    def __init__(self, store, shards):
        self.store = dist.PrefixStore("ledger", store)
        self.shards = shards

    def order(self, epoch):
        g = torch.Generator().manual_seed(900 + epoch)
        return torch.randperm(self.shards, generator=g).tolist()

    def take(self, epoch):
        ticket = self.store.add(f"epoch{epoch}/next", 1) - 1
        return ticket if ticket < self.shards else None


class ShardedText:
    def __init__(self, shards, rows=192, length=48, vocab=120):
        self.rows, self.length, self.vocab = rows, length, vocab
        g = torch.Generator().manual_seed(0)
        self.table = torch.randint(0, vocab, (vocab, 3), generator=g)

    def load(self, shard):
        g = torch.Generator().manual_seed(10_000 + shard)
        ids = torch.randint(0, self.vocab, (self.rows, self.length + 1), generator=g)
        pick = torch.randint(0, 3, ids.shape, generator=g)
        for t in range(1, self.length + 1):
            ids[:, t] = self.table[ids[:, t - 1], pick[:, t]]
        return ids


class ConvLM(nn.Module):
    def __init__(self, vocab=120, dim=128, depth=4):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.convs = nn.ModuleList(nn.Conv1d(dim, 2 * dim, 3) for _ in range(depth))
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        x = self.embed(ids).transpose(1, 2)
        for conv in self.convs:
            x = x + F.glu(conv(F.pad(x, (2, 0))), dim=1)
        return self.head(x.transpose(1, 2))


def weighted_average(model, rows):
    """Gradients are sums over rows; a rank that got no shard brings zeros."""
    parts = [(p.grad if p.grad is not None else torch.zeros_like(p)).reshape(-1) for p in model.parameters()]
    flat = torch.cat(parts + [torch.tensor([float(rows)])])
    dist.all_reduce(flat)
    count, offset = flat[-1].item(), 0
    for p in model.parameters():
        p.grad = (flat[offset:offset + p.numel()] / max(count, 1.0)).view_as(p).clone()
        offset += p.numel()
    return count


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--shards", type=int, default=41)
    ap.add_argument("--lr", type=float, default=3e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(6)
    model = ConvLM()
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    ledger = WorkLedger(dist.distributed_c10d._get_default_store(), args.shards)
    text = ShardedText(args.shards)

    taken = 0
    for epoch in range(args.epochs):
        order, total = ledger.order(epoch), 0.0
        while True:
            ticket = ledger.take(epoch)
            opt.zero_grad(set_to_none=True)
            rows = 0
            if ticket is not None:
                ids = text.load(order[ticket])
                rows = len(ids)
                loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()) * rows
                loss.backward()
                total += loss.item()
                taken += 1
            count = weighted_average(model, rows)
            if count == 0:
                break
            opt.step()
        summary = torch.tensor([total])
        dist.all_reduce(summary)
        if rank == 0:
            print(f"epoch {epoch} loss {summary.item() / (args.shards * text.rows):.4f}", flush=True)
    print(f"rank {rank} took {taken} shards", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
