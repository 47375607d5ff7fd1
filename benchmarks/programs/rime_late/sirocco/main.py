"""Character model on short lines, with a small hook-driven trainer."""
import argparse
import contextlib
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from corpus import ALPHABET, Lines, collate, make_lines
from hooks import LossHistory, Throughput


class CharModel(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.embed = nn.Embedding(len(ALPHABET) + 1, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, len(ALPHABET) + 1)

    def forward(self, ids):
        return self.out(self.rnn(self.embed(ids))[0])


class Trainer:
    def __init__(self, args, hooks):
        self.args = args
        self.hooks = hooks
        self.rank = dist.get_rank()
        self.world = dist.get_world_size()
        self.side_group = dist.new_group()
        self.model = DistributedDataParallel(CharModel(args.dim))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=args.lr)

    def say(self, text):
        if self.rank == 0:
            print(text, flush=True)

    def fit(self, loader, sampler):
        with contextlib.ExitStack() as stack:
            for hook in self.hooks:
                hook.setup(self)
                stack.callback(hook.teardown, self)
            for epoch in range(self.args.epochs):
                sampler.set_epoch(epoch)
                total = 0.0
                for ids, target in loader:
                    loss = self.step(ids, target)
                    total += loss
                    for hook in self.hooks:
                        hook.after_step(self, loss)
                self.say(f"epoch {epoch} loss {total / len(loader):.3f}")
                for hook in self.hooks:
                    hook.after_epoch(self)

    def step(self, ids, target):
        logits = self.model(ids)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.last_tokens = ids.numel()
        return loss.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lines", type=int, default=2400)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--batch", type=int, default=24)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--curve", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "logs", "curve.json"))
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(1)
    data = Lines(make_lines(args.lines, seed=9))
    sampler = DistributedSampler(data, seed=4, drop_last=True)
    loader = DataLoader(data, args.batch, sampler=sampler, collate_fn=collate, drop_last=True)
    trainer = Trainer(args, [Throughput(), LossHistory(args.curve)])
    trainer.fit(loader, sampler)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
