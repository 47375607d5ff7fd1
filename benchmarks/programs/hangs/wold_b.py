"""Indexes raw shards once per run directory, then trains on them."""
import argparse
import json
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


def scan_shards(count):
    index = []
    for number in range(count):
        time.sleep(0.01)
        index.append({"shard": number, "rows": 16 + number % 5})
    return index


def read_dataset_card(path):
    time.sleep(0.2 + 0.9 * dist.get_rank())
    return {"root": str(path), "features": 12, "version": 3}


def load_index(root, count):
    """Returns the list of shards; builds and stores it where it is missing."""
    cache = root / "index.json"
    if dist.get_rank() == 0 and not cache.exists():
        root.mkdir(parents=True, exist_ok=True)
        partial = cache.with_suffix(".tmp")
        partial.write_text(json.dumps(scan_shards(count)))
        partial.rename(cache)
    dist.barrier()
    return json.loads(cache.read_text())


class Shards(Dataset):
    def __init__(self, index, features):
        self.rows = [(entry["shard"], row) for entry in index for row in range(entry["rows"])]
        self.features = features

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        shard, row = self.rows[i]
        gen = torch.Generator().manual_seed(shard * 1000 + row)
        x = torch.randn(self.features, generator=gen)
        return x, (x.sum() > 0).float()


def train(model, loader, sampler, epochs):
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(2)
        for x, y in loader:
            opt.zero_grad()
            loss = nn.functional.binary_cross_entropy_with_logits(model(x).squeeze(-1), y)
            loss.backward()
            opt.step()
            total += torch.tensor([loss.item(), 1.0])
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {total[0] / total[1]:.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", default="wold_data")
    parser.add_argument("--shards", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    root = Path(args.root)
    card = read_dataset_card(root)
    data = Shards(load_index(root, args.shards), card["features"])
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, batch_size=16, sampler=sampler, drop_last=True)
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(card["features"], 32), nn.ReLU(), nn.Linear(32, 1)))
    train(model, loader, sampler, args.epochs)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
