"""Vertical split learning between a clinic (features) and a laboratory (labels).

The clinic, rank 0, holds the measurements and an encoder; the laboratory, rank 1, holds the outcomes
and a classifier. The two are models of two owners: they choose their own optimizer, learning rate and
gradient limit, and only the embedding and its gradient cross the line.
"""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

CODE = 32


def records(seed, n):
    g = torch.Generator().manual_seed(seed)
    w = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    x = torch.randn(n, 40, generator=g)
    return x, (torch.tanh(x) @ w).argmax(1)


def batches(n, size, epochs):
    g = torch.Generator().manual_seed(77)  # patient order agreed on beforehand
    for _ in range(epochs):
        yield from torch.randperm(n, generator=g).split(size)


class Clinic:
    def __init__(self, args):
        self.x, _ = records(5, args.patients)
        self.encoder = nn.Sequential(nn.Linear(40, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, CODE))
        self.opt = torch.optim.AdamW(self.encoder.parameters(), lr=2e-3)

    def round(self, idx):
        code = self.encoder(self.x[idx])
        dist.send(code.detach(), 1)
        grad = torch.empty_like(code)
        dist.recv(grad, 1)
        self.opt.zero_grad()
        code.backward(grad)
        nn.utils.clip_grad_norm_(self.encoder.parameters(), 0.25)
        self.opt.step()


class Laboratory:
    def __init__(self, args):
        _, self.y = records(5, args.patients)
        self.head = nn.Sequential(nn.Linear(CODE, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 4))
        self.opt = torch.optim.SGD(self.head.parameters(), lr=0.1, momentum=0.9)
        self.hits = self.seen = 0

    def round(self, idx):
        code = torch.empty(len(idx), CODE)
        dist.recv(code, 0)
        code.requires_grad_()
        logits = self.head(code)
        loss = F.cross_entropy(logits, self.y[idx])
        self.opt.zero_grad()
        loss.backward()
        dist.send(code.grad, 0)
        nn.utils.clip_grad_norm_(self.head.parameters(), 1.0)
        self.opt.step()
        self.hits += (logits.argmax(1) == self.y[idx]).sum().item()
        self.seen += len(idx)
        if self.seen >= 2000:
            print(f"loss {loss.item():.3f} accuracy {self.hits / self.seen:.3f}", flush=True)
            self.hits = self.seen = 0


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--patients", type=int, default=4000)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--epochs", type=int, default=5)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    party = Clinic(args) if dist.get_rank() == 0 else Laboratory(args)
    for idx in batches(args.patients, args.batch, args.epochs):
        party.round(idx)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
