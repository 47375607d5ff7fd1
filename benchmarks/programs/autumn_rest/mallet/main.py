"""Embedding tower trained with large effective batches."""
import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from trainer import Trainer


class Tower(nn.Module):
    def __init__(self, vocab=12000, dim=128, classes=50):
        super().__init__()
        self.table = nn.Embedding(vocab, dim)
        self.body = nn.Sequential(
            nn.Linear(dim, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, classes)
        )

    def forward(self, ids):
        return self.body(self.table(ids).mean(1))


def click_stream(rank, batch, vocab=12000, classes=50, fields=20):
    gen = torch.Generator().manual_seed(1234 + rank)
    owner = torch.randint(0, classes, (vocab,), generator=torch.Generator().manual_seed(0))
    while True:
        ids = (torch.rand(batch, fields, generator=gen) ** 6 * vocab).long()
        label = torch.where(torch.rand(batch, generator=gen) < 0.9, owner[ids[:, 0]], owner[ids[:, 1]])
        ids[:, : fields // 2] = ids[:, :1]
        yield ids, label


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--updates", type=int, default=30)
    p.add_argument("--accumulate", type=int, default=8)
    p.add_argument("--micro-batch", type=int, default=16)
    p.add_argument("--lr", type=float, default=1e-3)
    args = p.parse_args()
    dist.init_process_group("gloo")
    logging.basicConfig(level=logging.INFO if dist.get_rank() == 0 else logging.WARNING, format="%(asctime)s %(message)s")
    torch.manual_seed(3)
    model = DDP(Tower())
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * 300, momentum=0.9)
    trainer = Trainer(model, optimizer, nn.CrossEntropyLoss(), args.accumulate)
    trainer.fit(click_stream(dist.get_rank(), args.micro_batch), args.updates)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
