import torch


class Augment:
    """Random token replacement, independent on every rank."""

    def __init__(self, seed, vocab):
        self.g = torch.Generator().manual_seed(seed)
        self.vocab = vocab

    def __call__(self, ids, p):
        if p == 0:
            return ids
        swap = torch.rand(ids.shape, generator=self.g) < p
        swap &= ids != 1
        return torch.where(swap, torch.randint(2, self.vocab, ids.shape, generator=self.g), ids)
