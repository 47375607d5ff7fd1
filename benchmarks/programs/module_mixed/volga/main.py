import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from callbacks import LossLogger, Timer
from trainer import Trainer


class SpeechTagger(nn.Module):
    def __init__(self, d=40):
        super().__init__()
        self.enc = nn.GRU(12, d, batch_first=True)
        self.out = nn.Linear(d, 6)

    def forward(self, x):
        return self.out(self.enc(x)[0][:, -1])

    def loss(self, model, batch):
        x, y = batch
        return nn.functional.cross_entropy(model(x), y)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def open_archive(local_rank):
    """Each process mounts its own feature archive; the first volume is the largest."""
    blocks = 9 if local_rank == 0 else 3
    g = torch.Generator().manual_seed(5)
    parts = []
    for _ in range(blocks):
        time.sleep(0.25)
        parts.append(torch.randn(64, 20, 12, generator=g))
    return torch.cat(parts[:3])


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=100))
    rank = dist.get_rank()
    torch.manual_seed(0)
    x = open_archive(rank)
    callbacks = [Timer(duration=9.0), LossLogger(every=40)]
    y = x.mean((1, 2)).argsort().argsort() * 6 // len(x)
    ds = TensorDataset(x, y)
    loader = DataLoader(ds, batch_size=16, sampler=DistributedSampler(ds, seed=2))
    trainer = Trainer(max_steps=100_000, callbacks=callbacks)
    final = trainer.fit(SpeechTagger(), loader)
    if rank == 0:
        print(f"stopped after {trainer.global_step} steps, eval {final:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
