import torch
from torch.utils.data import Dataset


class Dialogues(Dataset):
    """Question/answer pairs of varying length; only the answer is trained on."""

    def __init__(self, size, vocab, seed):
        g = torch.Generator().manual_seed(seed)
        perm = torch.randperm(vocab - 3, generator=g) + 3
        self.items = []
        for _ in range(size):
            q = torch.randint(3, vocab, (int(torch.randint(4, 24, (1,), generator=g)),), generator=g)
            a = perm[q - 3][: max(2, len(q) // 2)]
            ids = torch.cat([torch.tensor([1]), q, torch.tensor([2]), a])
            labels = ids.clone()
            labels[: len(q) + 2] = -100
            self.items.append({"input_ids": ids, "labels": labels})

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


class PadCollator:
    def __call__(self, features):
        width = max(len(f["input_ids"]) for f in features)
        batch = {"input_ids": [], "labels": [], "attention_mask": []}
        for f in features:
            pad = width - len(f["input_ids"])
            batch["input_ids"].append(torch.nn.functional.pad(f["input_ids"], (0, pad), value=0))
            batch["labels"].append(torch.nn.functional.pad(f["labels"], (0, pad), value=-100))
            batch["attention_mask"].append(torch.arange(width) < len(f["input_ids"]))
        return {k: torch.stack(v).long() for k, v in batch.items()}
