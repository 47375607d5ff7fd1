import numpy as np
import torch
from torch.utils.data import Dataset

PAD, BOS, EOS = 0, 1, 2


class ToyTranslation(Dataset):
    """Source sentences and their word-by-word translation with local reordering."""

    def __init__(self, n, vocab=400, seed=0):
        rng = np.random.default_rng(seed)
        table = np.random.default_rng(8).permutation(np.arange(3, vocab))
        zipf = 1 / np.arange(1, vocab - 2)
        self.pairs = []
        for _ in range(n):
            src = rng.choice(np.arange(3, vocab), size=int(rng.integers(3, 28)), p=zipf / zipf.sum())
            tgt = table[src - 3]
            tgt[: len(tgt) // 2 * 2] = tgt[: len(tgt) // 2 * 2].reshape(-1, 2)[:, ::-1].ravel()
            self.pairs.append((torch.from_numpy(src), torch.from_numpy(np.concatenate([[BOS], tgt, [EOS]]))))

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, i):
        return self.pairs[i]


def collate(batch):
    pad = lambda seqs: torch.nn.utils.rnn.pad_sequence(seqs, batch_first=True, padding_value=PAD)
    return pad([s for s, _ in batch]), pad([t for _, t in batch])
