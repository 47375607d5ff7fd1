"""Documents made of text, some of them with a picture."""
import torch
from torch.utils.data import Dataset


class Documents(Dataset):
    """Grouped by author: an author either illustrates what he writes or does not."""

    def __init__(self, authors=24, per_author=8, seq=16, vocab=50, seed=4):
        g = torch.Generator().manual_seed(seed)
        n = authors * per_author
        self.ids = torch.randint(0, vocab, (n, seq), generator=g)
        self.pictures = torch.randn(n, 3, 8, 8, generator=g)
        habit = torch.rand(authors, generator=g) < 0.55
        self.illustrated = habit.repeat_interleave(per_author)
        self.target = self.ids.float().mean(1) / vocab + torch.where(
            self.illustrated, self.pictures.mean((1, 2, 3)), torch.zeros(n))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return self.ids[i], self.pictures[i] if self.illustrated[i] else None, self.target[i]


def collate(items):
    ids, pictures, target = zip(*items)
    where = [k for k, p in enumerate(pictures) if p is not None]
    batch = {"ids": torch.stack(ids), "target": torch.stack(target)}
    if where:
        batch["pixel_values"] = torch.stack([pictures[k] for k in where])
        batch["pixel_rows"] = torch.tensor(where)
    return batch
