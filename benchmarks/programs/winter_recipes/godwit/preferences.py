import torch
from torch.utils.data import Dataset


class Preferences(Dataset):
    def __init__(self, n=1024, vocab=128, seed=0):
        self.g = torch.Generator().manual_seed(seed)
        draw = lambda lo, hi: int(torch.randint(lo, hi, (1,), generator=self.g))
        self.items = []
        for _ in range(n):
            prompt = torch.randint(2, vocab, (draw(40, 110),), generator=self.g)
            chosen = torch.randint(2, vocab // 2, (draw(16, 50),), generator=self.g)
            rejected = torch.randint(vocab // 2, vocab, (draw(16, 50),), generator=self.g)
            self.items.append((prompt, chosen, rejected))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(batch):
    """Chosen answers first, rejected ones after them."""
    rows = [(p, c) for p, c, _ in batch] + [(p, r) for p, _, r in batch]
    ids = torch.nn.utils.rnn.pad_sequence([torch.cat(r) for r in rows], batch_first=True)
    start = torch.tensor([len(p) for p, _ in rows])
    stop = torch.tensor([len(p) + len(a) for p, a in rows])
    t = torch.arange(ids.size(1))
    return ids, start, ((t >= start[:, None]) & (t < stop[:, None])).float()
