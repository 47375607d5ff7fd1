import argparse
import contextlib
import itertools

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

from collate import IGNORE, Phrases, collate


class GRULM(nn.Module):
    def __init__(self, vocab=40, width=48):
        super().__init__()
        self.emb = nn.Embedding(vocab, width, padding_idx=0)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, vocab)

    def forward(self, ids):
        return self.out(self.rnn(self.emb(ids))[0])


class SFTTrainer:
    def __init__(self, args):
        self.args = args
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(args.seed)
        self.model = DDP(GRULM())
        self.opt = torch.optim.SGD(self.model.parameters(), lr=args.lr, momentum=0.9)
        data = Phrases()
        self.sampler = DistributedSampler(data, seed=args.seed, drop_last=True)
        self.loader = DataLoader(data, args.batch_size, sampler=self.sampler,
                                 collate_fn=collate, drop_last=True)

    def num_items(self, window):
        n = torch.tensor(float(sum((labels != IGNORE).sum() for _, labels in window)))
        dist.all_reduce(n)
        return n

    def loss(self, batch, num_items):
        ids, labels = batch
        logits = self.model(ids)
        total = F.cross_entropy(logits.flatten(0, 1), labels.flatten(),
                                ignore_index=IGNORE, reduction="sum")
        return total * self.world / num_items

    def train_window(self, window):
        num_items = self.num_items(window)
        self.opt.zero_grad()
        seen = torch.zeros(())
        for i, batch in enumerate(window):
            last = i == len(window) - 1
            with contextlib.nullcontext() if last else self.model.no_sync():
                loss = self.loss(batch, num_items)
                loss.backward()
            seen += loss.detach()
        self.opt.step()
        return seen

    def train(self):
        step = 0
        for epoch in range(self.args.epochs):
            self.sampler.set_epoch(epoch)
            it = iter(self.loader)
            while window := list(itertools.islice(it, self.args.accumulate)):
                loss = self.train_window(window)
                step += 1
                if step % 6 == 0 and self.rank == 0:
                    print(f"epoch {epoch} step {step} loss {loss.item():.4f}")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--batch-size", type=int, default=16)
    p.add_argument("--accumulate", type=int, default=2)
    p.add_argument("--lr", type=float, default=1.0)
    p.add_argument("--seed", type=int, default=0)
    dist.init_process_group("gloo")
    SFTTrainer(p.parse_args()).train()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
