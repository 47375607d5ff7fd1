import random

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler

IGNORE = -100
SOURCES = ("chat", "manual", "code")


class InstructionSet(Dataset):
    """Prompt/answer pairs, cut to max_len; prompt tokens carry no loss."""

    def __init__(self, n, vocab, max_len, seed=3):
        self.max_len = max_len
        self.rows = []
        rng = random.Random(seed)
        for i in range(n):
            source = SOURCES[i % len(SOURCES)]
            prompt = rng.randint(6, 14)
            if source == "manual" and 90 <= i < 102:
                prompt = rng.randint(40, 60)
            answer = rng.randint(5, 12)
            start = rng.randint(4, vocab - 1)
            tokens = [(start + 7 * k) % (vocab - 4) + 4 for k in range(prompt + answer)]
            tokens[:4] = [rng.randint(4, vocab - 1) for _ in range(4)]
            self.rows.append((tokens, prompt))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        tokens, prompt = self.rows[i]
        ids = tokens[: self.max_len]
        labels = ([IGNORE] * prompt + tokens[prompt:])[: self.max_len]
        pad = self.max_len - len(ids)
        ids = ids + [0] * pad
        labels = labels + [IGNORE] * pad
        return torch.tensor(ids), torch.tensor(labels)


def make_loader(args):
    ds = InstructionSet(args.samples, args.vocab, args.max_len)
    sampler = DistributedSampler(ds, shuffle=False)
    return DataLoader(ds, batch_size=args.batch_size, sampler=sampler, drop_last=True)
