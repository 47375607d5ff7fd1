import random
from collections import defaultdict

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Sampler


class LengthBatches(Sampler):
    """Batches of sequences of about the same length, handed out rank by rank."""

    def __init__(self, lengths, batch_size, rank, world, width=8):
        self.batch_size = batch_size
        self.rank = rank
        self.world = world
        self.groups = defaultdict(list)
        for index, length in enumerate(lengths):
            self.groups[length // width].append(index)

    def _plan(self):
        batches = []
        for key in sorted(self.groups):
            members = list(self.groups[key])
            random.shuffle(members)
            for at in range(0, len(members), self.batch_size):
                batches.append(members[at:at + self.batch_size])
        random.shuffle(batches)
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
