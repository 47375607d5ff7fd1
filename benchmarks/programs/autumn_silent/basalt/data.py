import torch
from torch.utils.data import Dataset

IGNORE = -100
PAD = 0


class InstructionPairs(Dataset):
    """Synthetic (instruction, answer) pairs: the answer is the reversed instruction."""

    def __init__(self, size, vocab, seed=0):
        gen = torch.Generator().manual_seed(seed)
        self.rows = []
        for _ in range(size):
            n = int(torch.randint(3, 16, (1,), generator=gen))
            src = torch.randint(3, vocab, (n,), generator=gen)
            self.rows.append((src, src.flip(0)))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        src, tgt = self.rows[i]
        sep = torch.tensor([1])
        eos = torch.tensor([2])
        ids = torch.cat([src, sep, tgt, eos])
        labels = torch.cat([torch.full((len(src) + 1,), IGNORE), tgt, eos])
        return ids, labels


def collate(rows):
    width = max(len(ids) for ids, _ in rows)
    input_ids = torch.full((len(rows), width), PAD)
    labels = torch.full((len(rows), width), IGNORE)
    for i, (ids, lab) in enumerate(rows):
        input_ids[i, :len(ids)] = ids
        labels[i, :len(lab)] = lab
    return {"input_ids": input_ids, "labels": labels}
