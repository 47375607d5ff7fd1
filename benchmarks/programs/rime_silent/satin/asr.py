#!/usr/bin/env python3
"""CTC training on synthetic filterbank utterances."""
import argparse
import logging
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from buckets import BucketBatchSampler


class Utterances(Dataset):
    def __init__(self, n, seed, phones=20):
        g = torch.Generator().manual_seed(seed)
        proto = torch.randn(phones + 1, 20, generator=torch.Generator().manual_seed(0))
        self.items = []
        for _ in range(n):
            labels = torch.randint(1, phones + 1, (int(torch.randint(3, 13, (1,), generator=g)),), generator=g)
            frames = proto[labels].repeat_interleave(4, 0)
            self.items.append((frames + 0.5 * torch.randn(frames.shape, generator=g), labels))
        self.lengths = [len(f) for f, _ in self.items]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(batch):
    feats, labels = zip(*batch)
    return (pad_sequence(feats, batch_first=True), torch.tensor([len(f) for f in feats]),
            torch.cat(labels), torch.tensor([len(t) for t in labels]))


class Acoustic(nn.Module):
    def __init__(self, phones=20, dim=64):
        super().__init__()
        self.front = nn.Conv1d(20, dim, 3, padding=1)
        self.rnn = nn.GRU(dim, dim, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * dim, phones + 1)

    def forward(self, x):
        h = torch.relu(self.front(x.transpose(1, 2))).transpose(1, 2)
        return self.out(self.rnn(h)[0]).log_softmax(-1)


class Runner:
    def __init__(self, args):
        self.args, self.rank = args, dist.get_rank()
        train, dev = Utterances(args.utts, 1), Utterances(128, 2)
        base = DistributedSampler(train, shuffle=True, seed=args.seed)
        self.train_loader = DataLoader(
            train, collate_fn=collate, batch_sampler=BucketBatchSampler(base, train.lengths, args.batch_size))
        self.dev_loader = DataLoader(dev, 32, sampler=DistributedSampler(dev, shuffle=False), collate_fn=collate)
        self.model = DistributedDataParallel(Acoustic())
        self.ctc = nn.CTCLoss(zero_infinity=True)
        self.opt = torch.optim.Adam(self.model.parameters(), lr=args.lr)

    def loss(self, batch):
        feats, flen, labels, llen = batch
        return self.ctc(self.model(feats).transpose(0, 1), labels, flen, llen)

    def prepare_epoch(self, epoch):
        sampler = self.train_loader.sampler
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)

    def train_epoch(self, epoch):
        self.prepare_epoch(epoch)
        self.model.train()
        meter = torch.zeros(2)
        for batch in self.train_loader:
            loss = self.loss(batch)
            self.opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
            self.opt.step()
            meter += torch.tensor([loss.item(), 1.0])
        dist.all_reduce(meter)
        return (meter[0] / meter[1]).item()

    @torch.no_grad()
    def dev_loss(self):
        self.model.eval()
        meter = torch.zeros(2)
        for batch in self.dev_loader:
            n = len(batch[1])
            meter += torch.tensor([self.loss(batch).item() * n, n])
        dist.all_reduce(meter)
        return (meter[0] / meter[1]).item()

    def fit(self):
        best = float("inf")
        for epoch in range(1, self.args.epochs + 1):
            tr, dv = self.train_epoch(epoch), self.dev_loss()
            logging.info("epoch %d: train %.3f dev %.3f", epoch, tr, dv)
            if dv < best:
                best = dv
                if self.rank == 0:
                    torch.save(self.model.module.state_dict(), self.args.save)
        dist.barrier()


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=5)
    p.add_argument("--utts", type=int, default=512)
    p.add_argument("--batch-size", type=int, default=16)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--save", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "best.pt"))
    a = p.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(a.seed)
    logging.basicConfig(level=logging.INFO if dist.get_rank() == 0 else logging.ERROR, format="%(asctime)s %(message)s")
    Runner(a).fit()
    dist.destroy_process_group()
