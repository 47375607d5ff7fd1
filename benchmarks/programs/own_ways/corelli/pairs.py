import torch
from torch.utils.data import Dataset


class PairDataset(Dataset):
    """Token bags: same topic, neighbouring topic, or unrelated topic."""

    def __init__(self, n, seed, topics=8, words=10, length=12):
        g = torch.Generator().manual_seed(seed)
        self.rows = []
        for _ in range(n):
            label = int(torch.randint(3, (1,), generator=g))
            topic = int(torch.randint(topics, (1,), generator=g))
            jump = (0, 1, 2 + int(torch.randint(topics - 4, (1,), generator=g)))[label]
            bags = []
            for t in (topic, (topic + jump) % topics):
                own = 1 + t * words + torch.randint(words, (length,), generator=g)
                any_word = torch.randint(1, 1 + topics * words, (length,), generator=g)
                mix = torch.rand(length, generator=g) < 0.75
                size = int(torch.randint(length // 2, length + 1, (1,), generator=g))
                bag = torch.where(mix, own, any_word)
                bag[size:] = 0
                bags.append(bag)
            self.rows.append({"first": bags[0], "second": bags[1], "labels": torch.tensor(label)})

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def collate(rows):
    return {k: torch.stack([r[k] for r in rows]) for k in rows[0]}
