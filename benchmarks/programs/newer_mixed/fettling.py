"""Bagging-like sampling with class balance, and a stop and restart in the middle of an epoch."""
import argparse
import io

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


class Balanced:
    """Draws with replacement, rare classes more often. Each rank draws for itself and keeps its own state."""

    def __init__(self, labels, per_epoch, batch, seed):
        freq = torch.bincount(labels).float()
        self.weights = 1.0 / freq[labels]
        self.per_epoch, self.batch = per_epoch, batch
        self.gen = torch.Generator().manual_seed(seed)
        self.start_state, self.position = None, 0

    def state_dict(self):
        return {"start": self.start_state, "position": self.position}

    def load_state_dict(self, s):
        self.gen.set_state(s["start"])
        self.position = s["position"]

    def epoch(self):
        self.start_state = self.gen.get_state()
        order = torch.multinomial(self.weights, self.per_epoch, replacement=True, generator=self.gen)
        for at in range(self.position, self.per_epoch, self.batch):
            self.position = at + self.batch
            yield order[at:at + self.batch]
        self.position = 0


def data():
    g = torch.Generator().manual_seed(1)
    y = (torch.rand(300, generator=g) < 0.12).long()
    x = torch.randn(300, 8, generator=g) + y[:, None] * 0.9
    return x, y


def make_model():
    torch.manual_seed(2)
    model = DDP(nn.Sequential(nn.Linear(8, 20), nn.ReLU(), nn.Dropout(0.2), nn.Linear(20, 2)))
    return model, torch.optim.AdamW(model.parameters(), lr=4e-3)


def pack(**items):
    blob = io.BytesIO()
    torch.save(items, blob)
    return blob.getvalue()


def train(model, opt, sampler, x, y, first_epoch, epochs, stop_after=None):
    count = 0
    for epoch in range(first_epoch, epochs):
        for pick in sampler.epoch():
            loss = F.cross_entropy(model(x[pick]), y[pick])
            opt.zero_grad()
            loss.backward()
            opt.step()
            count += 1
            if count == stop_after:
                return epoch, loss.item()
    return epochs, loss.item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--stop-after", type=int, default=14)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    x, y = data()
    model, opt = make_model()
    torch.manual_seed(900 + rank)  # dropout differs from process to process
    sampler = Balanced(y, 120, 12, seed=60 + rank)
    epoch, loss = train(model, opt, sampler, x, y, 0, args.epochs, args.stop_after)
    blob = pack(model=model.module.state_dict(), opt=opt.state_dict(), sampler=sampler.state_dict(),
                epoch=epoch, rng=torch.get_rng_state())
    if rank == 0:
        print(f"stopped in epoch {epoch} loss {loss:.4f}", flush=True)
    model, opt = make_model()
    s = torch.load(io.BytesIO(blob), weights_only=True)
    model.module.load_state_dict(s["model"])
    opt.load_state_dict(s["opt"])
    sampler = Balanced(y, 120, 12, seed=0)
    sampler.load_state_dict(s["sampler"])
    torch.set_rng_state(s["rng"])
    epoch, loss = train(model, opt, sampler, x, y, s["epoch"], args.epochs)
    if rank == 0:
        print(f"done after {epoch} epochs loss {loss:.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
