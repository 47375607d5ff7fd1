"""Greedy packing of chat samples into fixed token budgets."""
from dataclasses import dataclass
from typing import Iterator

import torch

PAD, BOS, EOS = 0, 1, 2
VOCAB = 80


@dataclass
class Sample:
    ids: list[int]
    prompt_len: int


def synth_samples(n: int, seed: int) -> list[Sample]:
    """Lengths follow the usual long-tailed distribution of chat data."""
    g = torch.Generator().manual_seed(seed)
    out = []
    for _ in range(n):
        plen = int(torch.randint(3, 9, (1,), generator=g))
        alen = int(torch.exp(torch.randn(1, generator=g) * 0.8 + 2.0).clamp(2, 40))
        start = int(torch.randint(3, VOCAB, (1,), generator=g))
        body = [3 + (start - 3 + 2 * k) % (VOCAB - 3) for k in range(plen + alen)]
        out.append(Sample([BOS] + body + [EOS], plen + 1))
    return out


@dataclass
class Pack:
    ids: torch.Tensor       # (budget,)
    labels: torch.Tensor    # (budget,) -100 on prompt and padding
    pos: torch.Tensor       # positions restart with every sample
    doc: torch.Tensor       # sample index inside the pack, -1 on padding


class PackedLoader:
    """First-fit packing over this rank's share of the samples, new order each epoch."""

    def __init__(self, samples: list[Sample], budget: int, batch: int, rank: int, world: int, seed: int):
        self.samples, self.budget, self.batch = samples, budget, batch
        self.rank, self.world, self.seed = rank, world, seed
        self.epoch = 0

    def set_epoch(self, epoch: int):
        self.epoch = epoch

    def _bins(self) -> list[list[int]]:
        g = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(len(self.samples), generator=g).tolist()
        order = order[: len(order) // self.world * self.world][self.rank::self.world]
        bins, room = [], []
        for i in order:
            need = len(self.samples[i].ids)
            for b, r in enumerate(room):
                if r >= need:
                    bins[b].append(i)
                    room[b] -= need
                    break
            else:
                bins.append([i])
                room.append(self.budget - need)
        return bins

    def _build(self, members: list[int]) -> Pack:
        ids = torch.full((self.budget,), PAD)
        labels = torch.full((self.budget,), -100)
        pos = torch.zeros(self.budget, dtype=torch.long)
        doc = torch.full((self.budget,), -1)
        at = 0
        for d, i in enumerate(members):
            s = self.samples[i]
            n = len(s.ids)
            row = torch.tensor(s.ids)
            ids[at:at + n] = row
            labels[at + s.prompt_len:at + n] = row[s.prompt_len:]
            pos[at:at + n] = torch.arange(n)
            doc[at:at + n] = d
            at += n
        return Pack(ids, labels, pos, doc)

    def __iter__(self) -> Iterator[Pack]:
        bins = self._bins()
        for lo in range(0, len(bins), self.batch):
            packs = [self._build(b) for b in bins[lo:lo + self.batch]]
            yield Pack(*(torch.stack([getattr(p, f) for p in packs]) for f in ("ids", "labels", "pos", "doc")))
