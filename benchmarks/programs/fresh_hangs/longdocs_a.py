"""Sentence classifier over documents of very different length, with a scratch arena of fixed size."""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Documents(Dataset):
    def __init__(self, count=256):
        gen = torch.Generator().manual_seed(5)
        self.lengths = torch.randint(8, 40, (count,), generator=gen)
        self.lengths[101] = 420
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        gen = torch.Generator().manual_seed(index)
        tokens = torch.randint(1, 100, (int(self.lengths[index]),), generator=gen)
        return tokens, int(tokens.sum() % 4)


def collate(rows):
    width = max(len(tokens) for tokens, _ in rows)
    out = torch.zeros(len(rows), width, dtype=torch.long)
    for i, (tokens, _) in enumerate(rows):
        out[i, : len(tokens)] = tokens
    return out, torch.tensor([label for _, label in rows])


class Arena:
    """Keeps the score matrices of a batch within a fixed number of cells."""

    def __init__(self, cells):
        self.cells = cells

    def fits(self, tokens):
        return tokens.shape[0] * tokens.shape[1] ** 2 <= self.cells

    def reserve(self, tokens):
        if not self.fits(tokens):
            raise RuntimeError(f"arena: out of memory for a batch of {tuple(tokens.shape)}")


class Classifier(nn.Module):
    def __init__(self, arena, dim=32):
        super().__init__()
        self.arena = arena
        self.embed = nn.Embedding(100, dim, padding_idx=0)
        self.mix = nn.MultiheadAttention(dim, 2, batch_first=True)
        self.out = nn.Linear(dim, 4)

    def forward(self, tokens):
        self.arena.reserve(tokens)
        x = self.embed(tokens)
        pad = tokens == 0
        x, _ = self.mix(x, x, x, key_padding_mask=pad)
        return self.out(x.masked_fill(pad.unsqueeze(-1), 0).sum(1))


def train_epoch(model, loader, optimizer, epoch):
    loss_fn = nn.CrossEntropyLoss()
    for step, (tokens, label) in enumerate(loader):
        time.sleep(0.2)
        try:
            loss = loss_fn(model(tokens), label)
            loss.backward()
        except RuntimeError as error:
            if "out of memory" not in str(error):
                raise
            print(f"epoch {epoch} step {step}: {error}, going on", flush=True)
            optimizer.zero_grad()
            continue
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 4 == 0 and dist.get_rank() == 0:
            print(f"epoch {epoch} step {step} loss {loss.item():.3f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--cells", type=int, default=200_000)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = Documents()
    sampler = DistributedSampler(data, shuffle=True, seed=1)
    loader = DataLoader(data, batch_size=8, sampler=sampler, collate_fn=collate)
    model = DDP(Classifier(Arena(args.cells)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        train_epoch(model, loader, optimizer, epoch)
        dist.barrier()
        if dist.get_rank() == 0:
            torch.save(model.module.state_dict(), "longdocs_last.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
