import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset
from torch.nn.parallel import DistributedDataParallel

from collate import pad_batch


class Sentences(Dataset):
    """Every process reads its own file of sentences."""

    def __init__(self, part, n=120):
        g = torch.Generator().manual_seed(900 + part)
        lens = torch.arange(n) * 7 % 90 + 6 + part * 3
        if part == 1:
            lens = lens.clamp(max=92)
        self.items = [torch.randint(1, 200, (int(l),), generator=g) for l in lens]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


class Classifier(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.emb = nn.EmbeddingBag(200, dim, mode="mean", padding_idx=0)
        self.mlp = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, 2))

    def forward(self, ids):
        return self.mlp(self.emb(ids))


def train(args, rank):
    torch.manual_seed(1)
    loader = DataLoader(Sentences(rank), batch_size=args.batch_size, collate_fn=pad_batch, shuffle=False)
    model = DistributedDataParallel(Classifier())
    optim = torch.optim.AdamW(model.parameters(), lr=2e-3)
    n_tokens = 0
    for epoch in range(args.epochs):
        for step, (ids, lens) in enumerate(loader):
            target = (lens > lens.float().mean()).long()
            loss = nn.functional.cross_entropy(model(ids), target)
            optim.zero_grad()
            loss.backward()
            optim.step()
            n_tokens += int(lens.sum())
            if step % args.log_every == 0:
                print(f"[{rank}] epoch {epoch} step {step} shape {tuple(ids.shape)} loss {loss.item():.3f}", flush=True)
    return n_tokens


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=6)
    parser.add_argument("--log-every", type=int, default=5)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    n = torch.tensor([train(args, rank)])
    dist.all_reduce(n)
    if rank == 0:
        print("tokens:", n.item(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
