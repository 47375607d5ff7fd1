import argparse
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, DistributedSampler

IGNORE = -100


class Texts(Dataset):
    def __init__(self, n=480, vocab=50):
        g = torch.Generator().manual_seed(18)
        self.rows = []
        for k in torch.randint(4, 24, (n,), generator=g).tolist():
            start = int(torch.randint(0, vocab, (1,), generator=g))
            self.rows.append((start + 7 * torch.arange(k + 1)) % vocab)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i][:-1], self.rows[i][1:]


def collate(items):
    xs, ys = zip(*items)
    return pad_sequence(xs, batch_first=True), pad_sequence(ys, batch_first=True, padding_value=IGNORE)


class Lm(nn.Module):
    def __init__(self, vocab=50, dim=40):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, vocab, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, x):
        return self.out(self.rnn(self.embed(x))[0])


def groups(loader, size):
    held = []
    for batch in loader:
        held.append(batch)
        if len(held) == size:
            yield held
            held = []
    if held:
        yield held


def update(model, opt, batches, world):
    tokens = torch.tensor(float(sum((y != IGNORE).sum() for _, y in batches)))
    dist.all_reduce(tokens)
    total = torch.zeros(())
    for i, (x, y) in enumerate(batches):
        with nullcontext() if i == len(batches) - 1 else model.no_sync():
            summed = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), ignore_index=IGNORE, reduction="sum")
            (summed * world / tokens).backward()
        total += summed.detach()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    opt.zero_grad()
    return total, tokens


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--accumulate", type=int, default=4)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(10)
    model = DDP(Lm())
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    data = Texts()
    sampler = DistributedSampler(data, world, rank, shuffle=True, seed=3)
    loader = DataLoader(data, batch_size=9, sampler=sampler, collate_fn=collate)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for batches in groups(loader, args.accumulate):
            total, tokens = update(model, opt, batches, world)
        dist.all_reduce(total)
        if rank == 0:
            print(f"epoch {epoch} loss per token {(total / tokens).item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
