"""Accumulation over ragged micro-batches: one mean over all tokens of the window, also for the short last window."""
import contextlib
import random

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

VOCAB, SKIP, WINDOW = 50, -1, 4


class Lines(Dataset):
    def __init__(self, n=600):
        rnd = random.Random(77)
        step = [rnd.randrange(VOCAB) for _ in range(VOCAB)]
        self.lines = []
        for _ in range(n):
            tok, line = rnd.randrange(VOCAB), []
            for _ in range(rnd.randint(5, 45)):
                line.append(tok)
                tok = step[tok] if rnd.random() < 0.9 else rnd.randrange(VOCAB)
            self.lines.append(torch.tensor(line))

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, i):
        return self.lines[i]


def collate(lines):
    src = pad_sequence([l[:-1] for l in lines], batch_first=True)
    dst = pad_sequence([l[1:] for l in lines], batch_first=True, padding_value=SKIP)
    return src, dst


class Model(nn.Module):
    def __init__(self, width=40):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, width)
        self.drop = nn.Dropout(0.1)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, VOCAB)

    def forward(self, ids):
        return self.out(self.rnn(self.drop(self.embed(ids)))[0])


def windows(loader, size):
    held = []
    for batch in loader:
        held.append(batch)
        if len(held) == size:
            yield held
            held = []
    if held:
        yield held


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(3 + rank)
    data = Lines()
    sampler = DistributedSampler(data, seed=8)
    loader = DataLoader(data, batch_size=10, sampler=sampler, collate_fn=collate)   # 30 = 7 windows and a rest of 2
    net = DDP(Model())
    opt = torch.optim.AdamW(net.parameters(), lr=4e-3)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for window in windows(loader, WINDOW):
            tokens = torch.tensor(float(sum((dst != SKIP).sum() for _, dst in window)))
            dist.all_reduce(tokens)
            nll = torch.zeros(())
            for i, (src, dst) in enumerate(window):
                last = i == len(window) - 1
                with contextlib.nullcontext() if last else net.no_sync():
                    part = F.cross_entropy(net(src).flatten(0, 1), dst.flatten(), ignore_index=SKIP, reduction="sum")
                    (part * world / tokens).backward()     # the wrapper takes the mean over the ranks
                nll += part.detach()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            opt.step()
            opt.zero_grad()
        dist.all_reduce(nll)
        if rank == 0:
            print(f"epoch {epoch}: {(nll / tokens).item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
