import numpy as np
import torch


class PreferenceSet:
    """(prompt, chosen, rejected) triples of very unlike length."""

    def __init__(self, n, vocab, max_len, seed):
        rng = np.random.default_rng(seed)
        self.lengths = np.clip(rng.lognormal(4.2, 0.9, size=n), 12, max_len).astype(int)
        self.vocab, self.seed = vocab, seed

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, i):
        gen = torch.Generator().manual_seed(self.seed * 7919 + int(i))
        n = int(self.lengths[i])
        start = torch.randint(0, self.vocab, (1,), generator=gen)
        good = (start + torch.arange(n)) % self.vocab
        bad = good.clone()
        flip = torch.rand(n, generator=gen) < 0.3
        flip[:n // 3] = False
        bad[flip] = torch.randint(0, self.vocab, (int(flip.sum()),), generator=gen)
        return good, bad, n // 3


class LongestFirstSampler:
    """Shuffled global batches; inside a batch the longest pairs come first, so that an out-of-memory
    shows at the first micro-batch and not at the last."""

    def __init__(self, lengths, global_batch, rank, world, seed=0):
        self.lengths, self.global_batch = lengths, global_batch
        self.rank, self.world, self.seed = rank, world, seed

    def batches(self, epoch):
        order = np.random.default_rng((self.seed, epoch)).permutation(len(self.lengths))
        local = self.global_batch // self.world
        for lo in range(0, len(order) - self.global_batch + 1, self.global_batch):
            ids = order[lo:lo + self.global_batch]
            ids = ids[np.argsort(-self.lengths[ids], kind="stable")]
            yield ids[self.rank * local:(self.rank + 1) * local]
