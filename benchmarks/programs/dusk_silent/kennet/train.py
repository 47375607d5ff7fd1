"""CTC acoustic model on a synthetic corpus.

    torchrun --nproc_per_node 3 train.py
"""
import argparse
import logging
import os
import random
import tempfile

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from corpus import ToneCorpus, collate
from sampler import BucketBatchSampler

logger = logging.getLogger("asr")


class AcousticModel(nn.Module):
    def __init__(self, bands=32, hidden=96, vocab=20):
        super().__init__()
        self.front = nn.Sequential(nn.Conv1d(bands, hidden, 5, 2, 2), nn.ReLU())
        self.rnn = nn.GRU(hidden, hidden, 1, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * hidden, vocab + 1)

    def forward(self, x, lengths):
        h = self.front(x.transpose(1, 2)).transpose(1, 2)
        return self.out(self.rnn(h)[0]).log_softmax(-1), (lengths + 1) // 2


def seed_everything(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=6)
    p.add_argument("--utterances", type=int, default=960)
    p.add_argument("--batch-size", type=int, default=12)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--seed", type=int, default=500)
    p.add_argument("--out", default=None)
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(asctime)s %(message)s")
    out = args.out or tempfile.mkdtemp()

    # augmentation has to differ between the processes
    seed_everything(args.seed + rank)
    corpus = ToneCorpus(args.utterances, seed=17)
    sampler = BucketBatchSampler(corpus.lengths, args.batch_size, world, rank)
    loader = DataLoader(corpus, batch_sampler=sampler, collate_fn=collate)
    model = DistributedDataParallel(AcousticModel())
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.lr, total_steps=args.epochs * len(loader))

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total, frames = 0.0, 0
        for x, x_len, y, y_len in loader:
            logp, out_len = model(x, x_len)
            loss = F.ctc_loss(logp.transpose(0, 1), y, out_len, y_len, zero_infinity=True)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            scheduler.step()
            total += loss.item()
            frames += int(x_len.sum())
        stats = torch.tensor([total / len(loader), frames], dtype=torch.float64)
        dist.all_reduce(stats)
        logger.info("epoch %d ctc %.4f frames %d lr %.2e", epoch, stats[0].item() / world, int(stats[1]),
                    optimizer.param_groups[0]["lr"])
        if rank == 0:
            torch.save(model.module.state_dict(), os.path.join(out, f"epoch{epoch}.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
