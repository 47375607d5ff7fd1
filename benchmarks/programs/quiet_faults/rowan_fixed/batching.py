import random
from collections import defaultdict

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Sampler


class LengthBatches(Sampler):
    """Batches of sequences of about the same length, handed out rank by rank."""

    def __init__(self, lengths, batch_size, rank, world, seed, width=8):
        self.batch_size = batch_size
        self.rank = rank
        self.world = world
        self.seed = seed
        self.epoch = 0
        self.groups = defaultdict(list)
        for index, length in enumerate(lengths):
            self.groups[length // width].append(index)

    def set_epoch(self, epoch):
        self.epoch = epoch

    def _plan(self):
        rng = random.Random(self.seed + self.epoch)
        batches = []
        for key in sorted(self.groups):
            members = list(self.groups[key])
            rng.shuffle(members)
            for at in range(0, len(members), self.batch_size):
                batches.append(members[at:at + self.batch_size])
        rng.shuffle(batches)
        usable = len(batches) // self.world * self.world
        return batches[:usable]

    def __iter__(self):
        return iter(self._plan()[self.rank::self.world])

    def __len__(self):
        total = sum(-(-len(g) // self.batch_size) for g in self.groups.values())
        return total // self.world


def collate(items):
    seqs, labels = zip(*items)
    lengths = torch.tensor([len(s) for s in seqs])
    return pad_sequence(seqs, batch_first=True), lengths, torch.stack(labels)
