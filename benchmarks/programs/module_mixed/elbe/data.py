import torch
from torch.utils.data import DataLoader, Dataset


class Sequences(Dataset):
    def __init__(self, n, length, vocab):
        g = torch.Generator().manual_seed(41)
        start = torch.randint(0, vocab, (n, 1), generator=g)
        step = torch.randint(1, 4, (n, 1), generator=g)
        self.ids = (start + step * torch.arange(length + 1)) % vocab

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return self.ids[i, :-1], self.ids[i, 1:]


def stage_loader(cfg, role, epoch):
    """Both ends walk through the same permutation; middle stages need no data."""
    ds = Sequences(cfg.samples, cfg.seq, cfg.vocab)
    column = 0 if role == "first" else 1
    return DataLoader(
        ds,
        batch_size=cfg.batch,
        shuffle=True,
        drop_last=role == "last",
        generator=torch.Generator().manual_seed(epoch),
        collate_fn=lambda rows: torch.stack([r[column] for r in rows]),
    )
