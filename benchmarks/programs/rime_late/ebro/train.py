"""Sentiment of hotel reviews with a bag of embeddings."""
import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from reviews import VOCAB, ReviewFiles, write_files

HERE = os.path.dirname(os.path.abspath(__file__))


class Sentiment(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.embed = nn.Embedding(len(VOCAB) + 1, dim)
        self.head = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, 2))

    def forward(self, ids):
        return self.head(self.embed(ids).mean(1))


def evaluate(model, loader):
    model.eval()
    good = torch.zeros(2)
    with torch.no_grad():
        for ids, stars in loader:
            good += torch.tensor([(model(ids).argmax(1) == stars).sum().item(), len(stars)])
    dist.all_reduce(good)
    model.train()
    return (good[0] / good[1]).item()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--lines", type=int, default=400)
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--folder", default=os.path.join(HERE, "reviews_data"))
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    train_dir, test_dir = os.path.join(args.folder, "train"), os.path.join(args.folder, "test")
    if rank == 0:
        write_files(train_dir, args.files, args.lines, seed=1)
        write_files(test_dir, 1, 600, seed=2)
    dist.barrier()

    torch.manual_seed(0)
    train = ReviewFiles(train_dir, rank, world, seed=3)
    loader = DataLoader(train, batch_size=args.batch)
    rows = list(ReviewFiles(test_dir, 0, 1, seed=0))
    test_loader = DataLoader(rows[rank::world], batch_size=100)
    model = DistributedDataParallel(Sentiment(args.dim))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)

    for epoch in range(args.epochs):
        train.set_epoch(epoch)
        steps, total = 0, 0.0
        for ids, stars in loader:
            loss = nn.functional.cross_entropy(model(ids), stars)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
            total += loss.item()
        accuracy = evaluate(model.module, test_loader)
        if rank == 0:
            print(f"epoch {epoch}: {steps} steps, loss {total / steps:.4f}, test accuracy {accuracy:.3f}", flush=True)
            torch.save(model.module.state_dict(), os.path.join(args.folder, "sentiment.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
