"""Several label heads on one trunk; the count tables are summed over ranks after each epoch."""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

HEADS = {"colour": 7, "shape": 4, "texture": 11}
NAMES = list(HEADS)


class Items(Dataset):
    """Every item carries all labels; `topic` says for which head an annotator checked it."""

    def __init__(self, count, seed):
        gen = torch.Generator().manual_seed(seed)
        self.x = torch.randn(count, 20, generator=gen)
        self.labels = {n: torch.randint(0, k, (count,), generator=gen) for n, k in HEADS.items()}

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        topic = NAMES[(i // 3 + i) % 3]
        return self.x[i], {n: v[i] for n, v in self.labels.items()}, topic


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(20, 40), nn.ReLU())
        self.heads = nn.ModuleDict({n: nn.Linear(40, k) for n, k in HEADS.items()})

    def forward(self, x):
        hidden = self.trunk(x)
        return {n: head(hidden) for n, head in self.heads.items()}


@torch.no_grad()
def evaluate(model, loader):
    tables = {n: torch.zeros(k, k) for n, k in HEADS.items()}
    for x, labels, topics in loader:
        out = model(x)
        for row, topic in enumerate(topics):
            tables[topic][labels[topic][row], out[topic][row].argmax()] += 1
    for topic, table in tables.items():
        dist.all_reduce(table)
    return {n: (t.diag().sum() / t.sum()).item() for n, t in tables.items()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    train, valid = Items(384, 1), Items(96, 2)
    sampler = DistributedSampler(train, shuffle=True, seed=2)
    loader = DataLoader(train, batch_size=16, sampler=sampler)
    valid_loader = DataLoader(valid, batch_size=12, sampler=DistributedSampler(valid, shuffle=False))
    net = Net()
    model = DDP(net)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loss_fn = nn.CrossEntropyLoss()
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, labels, _ in loader:
            time.sleep(0.2)
            out = model(x)
            loss = sum(loss_fn(out[n], labels[n]) for n in NAMES)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        scores = evaluate(net, valid_loader)
        if rank == 0:
            print(f"epoch {epoch}", {n: round(v, 3) for n, v in sorted(scores.items())}, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
