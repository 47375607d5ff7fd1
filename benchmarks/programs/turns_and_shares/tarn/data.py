"""Synthetic place names drawn from a small second-order letter chain."""
import random

import torch
from torch.utils.data import Dataset

ALPHABET = "abdegiklmnoprstu"
PAD = 0
BOS = 1
VOCAB = len(ALPHABET) + 2


class NameChain:
    def __init__(self, seed):
        rng = random.Random(seed)
        self.table = {}
        for a in ALPHABET:
            for b in ALPHABET:
                picks = rng.sample(ALPHABET, 3)
                self.table[a + b] = (picks, [0.7, 0.2, 0.1])

    def draw(self, rng, length):
        text = rng.choice(ALPHABET) + rng.choice(ALPHABET)
        while len(text) < length:
            picks, weights = self.table[text[-2:]]
            text += rng.choices(picks, weights)[0]
        return text


class PlaceNames(Dataset):
    def __init__(self, count, length, chain_seed, draw_seed):
        chain = NameChain(chain_seed)
        rng = random.Random(draw_seed)
        self.rows = [self.encode(chain.draw(rng, length)) for _ in range(count)]

    @staticmethod
    def encode(text):
        return torch.tensor([BOS] + [ALPHABET.index(c) + 2 for c in text])

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        row = self.rows[index]
        return row[:-1], row[1:]
