"""Decoder on sequences of unequal length, data parallel by hand, loss per token of the global batch."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

PAD, VOCAB, WIDTH = 0, 50, 64


class GRUDecoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, WIDTH, padding_idx=PAD)
        self.gru = nn.GRU(WIDTH, WIDTH, 1, batch_first=True)
        self.out = nn.Linear(WIDTH, VOCAB)

    def forward(self, ids):
        return self.out(self.gru(self.emb(ids))[0])


class Trainer:
    def __init__(self, args):
        self.args, self.rank, self.world = args, dist.get_rank(), dist.get_world_size()
        torch.manual_seed(2)
        self.net = GRUDecoder()
        self.opt = torch.optim.SGD(self.net.parameters(), lr=args.lr, momentum=0.9)
        self.gen = torch.Generator().manual_seed(300 + self.rank)

    def micro_batch(self):
        n, top = self.args.rows, 30
        start = torch.randint(1, VOCAB, (n, 1), generator=self.gen)
        stride = torch.randint(1, 4, (n, 1), generator=self.gen)
        ids = (start + stride * torch.arange(top + 1)) % (VOCAB - 1) + 1
        length = torch.randint(8, top + 1, (n, 1), generator=self.gen)
        ids[torch.arange(top + 1) > length] = PAD
        return ids[:, :-1], ids[:, 1:]

    def update(self):
        self.opt.zero_grad()
        tally = torch.zeros(2)  # summed loss, tokens
        for _ in range(self.args.micro):
            x, y = self.micro_batch()
            loss = F.cross_entropy(self.net(x).flatten(0, 1), y.flatten(), ignore_index=PAD, reduction="sum")
            loss.backward()
            tally += torch.stack([loss.detach(), (y != PAD).sum().float()])
        dist.all_reduce(tally)
        for p in self.net.parameters():
            dist.all_reduce(p.grad)
            p.grad /= tally[1]
        self.opt.step()
        return (tally[0] / tally[1]).item()

    def fit(self):
        for step in range(self.args.steps):
            loss = self.update()
            if self.rank == 0 and step % 10 == 0:
                print(f"step {step} loss per token {loss:.4f}", flush=True)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=70)
    ap.add_argument("--micro", type=int, default=4)
    ap.add_argument("--rows", type=int, default=12)
    ap.add_argument("--lr", type=float, default=1.0)
    dist.init_process_group("gloo")
    Trainer(ap.parse_args()).fit()
    dist.barrier()
    dist.destroy_process_group()
