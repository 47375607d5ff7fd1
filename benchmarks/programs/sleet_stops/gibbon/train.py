"""Speech-like sequence tagging with batches by number of frames."""
import argparse
import itertools
import logging

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from sync import Later, shortest


class Tagger(nn.Module):
    def __init__(self, dim=20, width=48, tags=6):
        super().__init__()
        self.conv = nn.Conv1d(dim, width, 5, padding=2)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, tags)

    def forward(self, x):
        h = torch.relu(self.conv(x.transpose(1, 2))).transpose(1, 2)
        return self.out(self.rnn(h)[0])


class ByFrames:
    """Batches of utterances of about ``frames`` frames; every rank has its own number of them."""

    def __init__(self, lengths, frames, seed):
        self.lengths, self.frames, self.seed = lengths, frames, seed
        self.epoch = 0

    def plan(self):
        g = torch.Generator().manual_seed(self.seed + self.epoch)
        order = sorted(torch.randperm(len(self.lengths), generator=g).tolist(), key=lambda i: self.lengths[i] // 8)
        out, cur = [], []
        for i in order:
            if cur and max(self.lengths[i], self.lengths[cur[0]]) * (len(cur) + 1) > self.frames:
                out.append(cur)
                cur = []
            cur.append(i)
        out.append(cur)
        perm = torch.randperm(len(out), generator=g).tolist()
        return [out[k] for k in perm]


def utterance(i, length, rank):
    g = torch.Generator().manual_seed(100_000 * rank + i)
    y = torch.randint(0, 6, (length // 4 + 1,), generator=g).repeat_interleave(4)[:length]
    x = 0.5 * torch.randn(length, 20, generator=g)
    x[torch.arange(length), y] += 1.0
    return x, y


def collate(ids, lengths, rank):
    pairs = [utterance(i, lengths[i], rank) for i in ids]
    x = nn.utils.rnn.pad_sequence([p[0] for p in pairs], batch_first=True)
    y = nn.utils.rnn.pad_sequence([p[1] for p in pairs], batch_first=True, padding_value=-100)
    return x, y


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=5)
    ap.add_argument("--utterances", type=int, default=260)
    ap.add_argument("--frames", type=int, default=500)
    ap.add_argument("--delay", type=int, default=3)
    a = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    g = torch.Generator().manual_seed(rank)
    lengths = torch.randint(16, 60 + 20 * rank, (a.utterances,), generator=g).tolist()
    torch.manual_seed(0)
    net = DDP(Tagger())
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    source, later = ByFrames(lengths, a.frames, seed=rank), Later(a.delay)
    for epoch in range(a.epochs):
        source.epoch = epoch
        plan = source.plan()
        steps = shortest(len(plan))
        logging.info("rank %d: %d batches, %d used", rank, len(plan), steps)
        for step, ids in enumerate(itertools.islice(plan, steps)):
            x, y = collate(ids, lengths, rank)
            out = net(x)
            loss = nn.functional.cross_entropy(out.flatten(0, 1), y.flatten())
            opt.zero_grad()
            loss.backward()
            opt.step()
            hit = (out.argmax(-1) == y)[y >= 0].float().mean()
            later.ask(step, loss.item(), hit.item())
            for at, (l, h) in later.ready():
                if rank == 0 and at % 20 == 0:
                    logging.info("epoch %d step %d loss %.3f hit %.3f", epoch, at, l, h)
        for _ in later.ready(flush=True):
            pass
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
