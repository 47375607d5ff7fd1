"""Character model for place names, run with torchrun on one or many processes."""
import argparse
import os
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from data import VOCAB, PlaceNames


class NameModel(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, width)
        self.body = nn.GRU(width, width, batch_first=True)
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, VOCAB)

    def forward(self, tokens):
        hidden, _ = self.body(self.embed(tokens))
        return self.out(self.norm(hidden))


class Trainer:
    def __init__(self, args):
        self.args = args
        self.rank = int(os.environ.get("RANK", 0))
        self.world = int(os.environ.get("WORLD_SIZE", 1))
        self.distributed = self.world > 1
        if self.distributed:
            dist.init_process_group("gloo")
        torch.manual_seed(args.seed)
        self.train_set = PlaceNames(args.names, args.length, chain_seed=3, draw_seed=11)
        self.valid_set = PlaceNames(args.names // 4, args.length, chain_seed=3, draw_seed=12)
        self.model = NameModel(args.width)
        self.net = DistributedDataParallel(self.model) if self.distributed else self.model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=args.lr)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, args.lr, total_steps=args.epochs * self.steps_per_epoch())
        self.criterion = nn.CrossEntropyLoss()
        self.out = Path(args.out)

    def steps_per_epoch(self):
        return len(self.train_set) // (self.args.batch * self.world)

    def loader(self, dataset, shuffle):
        sampler = None
        if self.distributed:
            sampler = DistributedSampler(dataset, self.world, self.rank, shuffle=shuffle,
                                         seed=self.args.seed, drop_last=True)
        return DataLoader(dataset, batch_size=self.args.batch, sampler=sampler,
                          shuffle=shuffle and sampler is None, drop_last=True)

    def mean_over_ranks(self, value):
        value = value.detach().clone()
        if self.distributed:
            dist.all_reduce(value)
            value /= self.world
        return value.item()

    def step(self, tokens, targets):
        logits = self.net(tokens)
        loss = self.criterion(logits.flatten(0, 1), targets.flatten())
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.args.clip)
        self.optimizer.step()
        self.schedule.step()
        return loss

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        total = torch.zeros(2)
        for tokens, targets in self.loader(self.valid_set, shuffle=False):
            logits = self.model(tokens)
            loss = self.criterion(logits.flatten(0, 1), targets.flatten())
            total += torch.tensor([loss.item() * len(tokens), len(tokens)])
        if self.distributed:
            dist.all_reduce(total)
        self.model.train()
        return (total[0] / total[1]).item()

    def save(self, epoch, score):
        if self.rank == 0:
            self.out.mkdir(parents=True, exist_ok=True)
            torch.save({"epoch": epoch, "score": score,
                        "model": self.model.state_dict(),
                        "optimizer": self.optimizer.state_dict()}, self.out / "names.pt")
        if self.distributed:
            dist.barrier()

    def fit(self):
        loader = self.loader(self.train_set, shuffle=True)
        best = float("inf")
        for epoch in range(self.args.epochs):
            if self.distributed:
                loader.sampler.set_epoch(epoch)
            started = time.time()
            for i, (tokens, targets) in enumerate(loader):
                loss = self.step(tokens, targets)
                if i % self.args.log_every == 0:
                    shown = self.mean_over_ranks(loss)
                    if self.rank == 0:
                        print(f"epoch {epoch} step {i:3d} loss {shown:.4f}", flush=True)
            score = self.validate()
            if self.rank == 0:
                print(f"epoch {epoch} valid {score:.4f} in {time.time() - started:.1f}s", flush=True)
            if score < best:
                best = score
                self.save(epoch, score)
        if self.distributed:
            dist.destroy_process_group()
        return best


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--names", type=int, default=1024)
    p.add_argument("--length", type=int, default=12)
    p.add_argument("--width", type=int, default=48)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--lr", type=float, default=4e-3)
    p.add_argument("--clip", type=float, default=1.0)
    p.add_argument("--log-every", type=int, default=8)
    p.add_argument("--seed", type=int, default=5)
    p.add_argument("--out", default=os.path.join(tempfile.gettempdir(), "placenames_b"))
    return p.parse_args()


if __name__ == "__main__":
    Trainer(parse()).fit()
