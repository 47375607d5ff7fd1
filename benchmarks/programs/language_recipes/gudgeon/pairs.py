import torch
from torch.utils.data import Dataset

from modeling import ASSISTANT, BASE_VOCAB, END, PAD, USER


class PreferencePairs(Dataset):
    """Preferred answers go on upwards from the question, rejected ones repeat it."""

    def __init__(self, size: int, seed: int):
        g = torch.Generator().manual_seed(seed)
        self.rows = []
        for _ in range(size):
            n = int(torch.randint(3, 8, (1,), generator=g))
            q = torch.randint(0, BASE_VOCAB, (n,), generator=g).tolist()
            m = int(torch.randint(3, 9, (1,), generator=g))
            good = [(q[-1] + k + 1) % BASE_VOCAB for k in range(m)]
            bad = [q[k % n] for k in range(m)]
            prompt = [USER] + q + [END, ASSISTANT]
            self.rows.append((prompt, good + [END], bad + [END]))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def collate(rows):
    seqs = [p + g for p, g, _ in rows] + [p + b for p, _, b in rows]
    starts = [len(p) for p, _, _ in rows] * 2
    longest = max(map(len, seqs))
    ids = torch.full((len(seqs), longest), PAD)
    mask = torch.zeros(len(seqs), longest)
    for r, (s, st) in enumerate(zip(seqs, starts)):
        ids[r, :len(s)] = torch.tensor(s)
        mask[r, st:len(s)] = 1.0
    return ids, mask
