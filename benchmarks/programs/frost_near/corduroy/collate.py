import torch
from torch.utils.data import Dataset

PAD, IGNORE = 0, -100


class Phrases(Dataset):
    """Counting phrases of very uneven length; the first half is prompt and carries no loss."""

    def __init__(self, n=768, vocab=40, seed=2):
        g = torch.Generator().manual_seed(seed)
        self.rows = []
        for _ in range(n):
            length = int(torch.randint(6, 40, (1,), generator=g))
            start = int(torch.randint(1, vocab, (1,), generator=g))
            stride = int(torch.randint(1, 4, (1,), generator=g))
            self.rows.append([(start + stride * k) % (vocab - 1) + 1 for k in range(length)])

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        row = self.rows[i]
        ids = torch.tensor(row[:-1])
        labels = torch.tensor(row[1:])
        labels[:len(row) // 2] = IGNORE
        return ids, labels


def collate(batch):
    ids, labels = zip(*batch)
    return (torch.nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=PAD),
            torch.nn.utils.rnn.pad_sequence(labels, batch_first=True, padding_value=IGNORE))
