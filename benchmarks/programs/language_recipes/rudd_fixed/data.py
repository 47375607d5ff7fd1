import torch
from torch.utils.data import DataLoader, Dataset


class Progressions(Dataset):
    """Arithmetic progressions modulo the vocabulary, one tensor per document."""

    def __init__(self, size: int, seq: int, vocab: int, seed: int):
        g = torch.Generator().manual_seed(seed)
        start = torch.randint(0, vocab, (size, 1), generator=g)
        stride = torch.randint(1, 7, (size, 1), generator=g)
        self.rows = (start + stride * torch.arange(seq + 1)) % vocab

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        row = self.rows[i]
        return row[:-1], row[1:]


def build_loader(ds: Dataset, batch: int, epoch_seed: int) -> DataLoader:
    """The ends of the pipeline call this with the same seed and see the same order."""
    g = torch.Generator().manual_seed(epoch_seed)
    return DataLoader(ds, batch_size=batch, shuffle=True, generator=g)
